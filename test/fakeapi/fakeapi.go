// Package fakeapi is a fake API server for tests of the agent's loops: it serves the requests that
// they make, and can fail or refuse them. test/e2e runs the same loops against a real one.
package fakeapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/must"
)

type object = map[string]any

// Server is a fake API server for clients that list and read.
type Server struct {
	Clients *kube.Clients

	t        testing.TB
	mu       sync.Mutex        // held while the fields below are used
	objects  map[string]object // by path
	version  int               // of the last change
	reject   func(*http.Request) int
	drop     string // a field that is removed from each status
	requests []string
}

// New starts a server without objects. It runs as long as the test.
func New(t testing.TB) *Server {
	s := &Server{t: t, objects: map[string]object{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	clients, err := kube.NewClients(&rest.Config{Host: server.URL, QPS: -1})
	must.Succeed(t, err)
	s.Clients = clients
	return s
}

// Reject makes the server respond with the status code that fn returns. Requests for which fn
// returns 0, and all requests if fn is nil, are served.
func (s *Server) Reject(fn func(*http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reject = fn
}

// Always returns a function for Reject that rejects all requests with code.
func Always(code int) func(*http.Request) int { return func(*http.Request) int { return code } }

// Drop makes the server remove a field from every status that is applied, as an API server does
// whose CRD does not have it.
func (s *Server) Drop(field string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop = field
}

// Get decodes an object into another. It reports false if there is none.
func (s *Server) Get(path string, into any) bool {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[path]
	if ok {
		decode(s.t, o, into)
	}
	return ok
}

// Put creates or replaces an object.
func (s *Server) Put(path string, from any) {
	s.t.Helper()
	o := toObject(s.t, from)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(path, o)
}

// PutCore creates a Node or a Namespace, or replaces it by another one of that name.
func (s *Server) PutCore(kind, name, uid string) {
	s.t.Helper()
	s.Put("/api/v1/"+strings.ToLower(kind)+"s/"+name, metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}})
}

// Pod returns a pod of the namespace db, with the annotation of a window if it is not "".
func Pod(name, uid, window string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(uid),
		ResourceVersion: "1"}}
	if window != "" {
		p.Annotations = map[string]string{policy.Annotation: window}
	}
	return p
}

func (s *Server) put(path string, o object) {
	s.version++
	meta := metaOf(o)
	meta["resourceVersion"] = strconv.Itoa(s.version)
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprint("uid-", s.version)
	}
	s.objects[path] = o
}

// Remove deletes an object.
func (s *Server) Remove(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, path)
}

// Paths returns the sorted paths of the objects.
func (s *Server) Paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Requests returns the requests since the last call, such as "GET /api/v1/nodes/node1".
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests = nil
	return requests
}

// ServeHTTP serves a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	reject := s.reject
	s.mu.Unlock()
	if reject != nil {
		if code := reject(r); code != 0 {
			fail(w, code)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o, found := s.objects[r.URL.Path]; {
	case r.Method == http.MethodGet && found:
		respond(w, o)
	case r.Method == http.MethodGet:
		s.list(w, r)
	case r.Method == http.MethodPatch:
		s.apply(w, r)
	case r.Method == http.MethodPost:
		s.create(w, r)
	case r.Method == http.MethodPut:
		s.updateStatus(w, r)
	case r.Method == http.MethodDelete && found:
		s.delete(w, r)
	default:
		fail(w, http.StatusNotFound)
	}
}

// delete deletes an object, if it has the UID of the request's precondition.
func (s *Server) delete(w http.ResponseWriter, r *http.Request) {
	var options metav1.DeleteOptions
	_ = json.NewDecoder(r.Body).Decode(&options) // without a body there are none
	if p := options.Preconditions; p != nil && p.UID != nil && string(*p.UID) != metaOf(s.objects[r.URL.Path])["uid"] {
		fail(w, outdated)
		return
	}
	delete(s.objects, r.URL.Path)
	respond(w, metav1.Status{TypeMeta: statusMeta, Status: metav1.StatusSuccess})
}

// updateStatus replaces the status of an object, if the request has its resource version.
func (s *Server) updateStatus(w http.ResponseWriter, r *http.Request) {
	at := strings.TrimSuffix(r.URL.Path, "/status")
	old, found := s.objects[at]
	var next object
	switch err := json.NewDecoder(r.Body).Decode(&next); {
	case err != nil:
		fail(w, http.StatusBadRequest)
	case !found || at == r.URL.Path:
		fail(w, http.StatusNotFound)
	case metaOf(next)["resourceVersion"] != metaOf(old)["resourceVersion"]:
		fail(w, outdated)
	default:
		old["status"] = next["status"]
		s.put(at, old)
		respond(w, old)
	}
}

// list lists a resource in all namespaces. A path with a namespace, or with a name after the
// resource, is that of an object that does not exist.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	parts := strings.Count(strings.TrimPrefix(r.URL.Path, "/api/"), "/") // v1/nodes, /apis/group/version/resource
	isObject := strings.HasPrefix(r.URL.Path, "/api/") && parts > 1 || parts > 4
	if err != nil || isObject || strings.Contains(r.URL.Path, "/namespaces/") {
		fail(w, http.StatusNotFound)
		return
	}
	group, resource := path.Split(r.URL.Path)
	items := []any{}
	for _, p := range slices.Sorted(maps.Keys(s.objects)) {
		if in, ok := strings.CutPrefix(p, group+"namespaces/"); ok && path.Base(path.Dir(in)) == resource {
			var o metav1.PartialObjectMetadata
			data, _ := json.Marshal(s.objects[p])
			if json.Unmarshal(data, &o) == nil && selector.Matches(labels.Set(o.Labels)) {
				items = append(items, s.objects[p])
			}
		}
	}
	respond(w, object{"metadata": object{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
}

// apply is server-side apply for a single manager that owns the whole spec and status, except for
// conditions that others have set.
func (s *Server) apply(w http.ResponseWriter, r *http.Request) {
	at, isStatus := strings.CutSuffix(r.URL.Path, "/status")
	if q := r.URL.Query(); q.Get("fieldManager") == "" || q.Get("force") != "true" {
		fail(w, http.StatusBadRequest) // a manager must have a name; without force it fails where others manage a field
		return
	}
	var body object
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		fail(w, http.StatusBadRequest)
		return
	}
	o, found := s.objects[at]
	switch {
	case !found && isStatus:
		fail(w, http.StatusNotFound)
		return
	case !found:
		delete(body, "status")
		o = body
		s.put(at, o)
	default:
		part := "spec"
		if owners, found := metaOf(body)["ownerReferences"]; found && !isStatus {
			if !reflect.DeepEqual(metaOf(o)["ownerReferences"], owners) {
				metaOf(o)["ownerReferences"] = owners
				s.put(at, o)
			}
		}
		if isStatus {
			part = "status"
			keepConditions(body, o)
			if status, _ := body["status"].(object); s.drop != "" {
				delete(status, s.drop)
			}
		}
		if !reflect.DeepEqual(o[part], body[part]) {
			o[part] = body[part]
			s.put(at, o)
		}
	}
	respond(w, o)
}

// keepConditions adds the conditions that other managers have set.
func keepConditions(body, there object) {
	status, _ := body["status"].(object)
	old, _ := there["status"].(object)
	all, _ := old["conditions"].([]any)
	for _, c := range all {
		if kind := c.(object)["type"]; kind != "RetentionActive" && kind != "AddressesShared" {
			mine, _ := status["conditions"].([]any)
			status["conditions"] = append(mine, c)
		}
	}
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var o object
	if json.NewDecoder(r.Body).Decode(&o) != nil {
		fail(w, http.StatusBadRequest)
		return
	}
	at := path.Join(r.URL.Path, fmt.Sprint(metaOf(o)["name"]))
	if _, found := s.objects[at]; found {
		fail(w, http.StatusConflict)
		return
	}
	s.put(at, o)
	respond(w, o)
}

// metaOf returns the metadata of an object, which it adds if there is none.
func metaOf(o object) object {
	meta, _ := o["metadata"].(object)
	if meta == nil {
		meta = object{}
		o["metadata"] = meta
	}
	return meta
}

// toObject converts a typed object to JSON.
func toObject(t testing.TB, from any) (o object) {
	t.Helper()
	decode(t, from, &o)
	return o
}

// decode copies an object into another that has the same JSON.
func decode(t testing.TB, from, into any) {
	t.Helper()
	data, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	must.Succeed(t, err)
}

func respond(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

var statusMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}

var reasons = map[int]metav1.StatusReason{
	http.StatusBadRequest:         metav1.StatusReasonBadRequest,
	http.StatusForbidden:          metav1.StatusReasonForbidden,
	http.StatusNotFound:           metav1.StatusReasonNotFound,
	http.StatusConflict:           metav1.StatusReasonAlreadyExists,
	outdated:                      metav1.StatusReasonConflict,
	http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
}

// outdated is the response to an update of another version of an object.
const outdated = -http.StatusConflict

// NotServed makes Reject respond as to a resource that is not served: with 404 in plain text, not a
// Status.
const NotServed = -404

func fail(w http.ResponseWriter, code int) {
	if code == NotServed {
		http.NotFound(w, nil)
		return
	}
	reason := reasons[code]
	code = max(code, -code)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: statusMeta, Status: metav1.StatusFailure,
		Reason: reason, Code: int32(code), Message: http.StatusText(code)})
}
