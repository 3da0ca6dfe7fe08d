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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/must"
)

type object = unstructured.Unstructured

// Server is a fake API server for clients that list and read.
type Server struct {
	Clients *kube.Clients

	t        testing.TB
	mu       sync.Mutex         // held while the fields below are used
	objects  map[string]*object // by path
	version  int                // of the last change
	reject   func(*http.Request) int
	drop     string // a field that is removed from each status
	requests []string
}

// New starts a server without objects. It runs as long as the test.
func New(t testing.TB) *Server {
	s := &Server{t: t, objects: map[string]*object{}}
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
		decode(s.t, o.Object, into)
	}
	return ok
}

// Put creates or replaces an object.
func (s *Server) Put(path string, from any) {
	s.t.Helper()
	o := &object{}
	decode(s.t, from, &o.Object)
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

func (s *Server) put(path string, o *object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprint("uid-", s.version)))
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
			fail(w, r, code)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at, isStatus := strings.CutSuffix(r.URL.Path, "/status")
	o, found := s.objects[at]
	switch {
	case r.Method == http.MethodGet && found:
		respond(w, o.Object)
	case r.Method == http.MethodGet:
		s.list(w, r)
	case r.Method == http.MethodPatch:
		s.apply(w, r)
	case r.Method == http.MethodPost:
		s.create(w, r)
	case r.Method == http.MethodPut && found && isStatus:
		s.updateStatus(w, r, at)
	case r.Method == http.MethodDelete && found:
		s.delete(w, r, o)
	default:
		fail(w, r, http.StatusNotFound)
	}
}

// delete deletes an object, if it has the UID of the request's precondition.
func (s *Server) delete(w http.ResponseWriter, r *http.Request, o *object) {
	var options metav1.DeleteOptions
	_ = json.NewDecoder(r.Body).Decode(&options) // without a body there are none
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != o.GetUID() {
		fail(w, r, http.StatusConflict)
		return
	}
	delete(s.objects, r.URL.Path)
	respond(w, metav1.Status{TypeMeta: statusMeta, Status: metav1.StatusSuccess})
}

// updateStatus replaces the status of an object, if the request has its resource version.
func (s *Server) updateStatus(w http.ResponseWriter, r *http.Request, at string) {
	old := s.objects[at]
	var next object
	switch err := json.NewDecoder(r.Body).Decode(&next.Object); {
	case err != nil:
		fail(w, r, http.StatusBadRequest)
	case next.GetResourceVersion() != old.GetResourceVersion():
		fail(w, r, http.StatusConflict)
	default:
		old.Object["status"] = next.Object["status"]
		s.put(at, old)
		respond(w, old.Object)
	}
}

// list lists a resource in all namespaces. A path with a namespace, or with a name after the
// resource, is that of an object that does not exist.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	parts := strings.Count(strings.TrimPrefix(r.URL.Path, "/api/"), "/") // v1/nodes, /apis/group/version/resource
	isObject := strings.HasPrefix(r.URL.Path, "/api/") && parts > 1 || parts > 4
	if err != nil || isObject || strings.Contains(r.URL.Path, "/namespaces/") {
		fail(w, r, http.StatusNotFound)
		return
	}
	group, resource := path.Split(r.URL.Path)
	items := []any{}
	for _, p := range slices.Sorted(maps.Keys(s.objects)) {
		in, ok := strings.CutPrefix(p, group+"namespaces/")
		if o := s.objects[p]; ok && path.Base(path.Dir(in)) == resource && selector.Matches(labels.Set(o.GetLabels())) {
			items = append(items, o.Object)
		}
	}
	respond(w, map[string]any{"metadata": metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}, "items": items})
}

// apply is server-side apply for a single manager that owns the whole spec and status, except for
// conditions that others have set.
func (s *Server) apply(w http.ResponseWriter, r *http.Request) {
	at, isStatus := strings.CutSuffix(r.URL.Path, "/status")
	var body object
	// A manager must have a name, and without force it fails where others manage a field.
	q := r.URL.Query()
	isNamed := q.Get("fieldManager") != "" && q.Get("force") == "true"
	if !isNamed || json.NewDecoder(r.Body).Decode(&body.Object) != nil {
		fail(w, r, http.StatusBadRequest)
		return
	}
	o, found := s.objects[at]
	part := "spec"
	switch owners := body.GetOwnerReferences(); {
	case !found && isStatus:
		fail(w, r, http.StatusNotFound)
		return
	case !found:
		delete(body.Object, "status")
		o = &body
		s.put(at, o)
	case isStatus:
		part = "status"
		keepConditions(body.Object, o.Object)
		unstructured.RemoveNestedField(body.Object, "status", s.drop)
	case owners != nil && !reflect.DeepEqual(o.GetOwnerReferences(), owners):
		o.SetOwnerReferences(owners)
		s.put(at, o)
	}
	if !reflect.DeepEqual(o.Object[part], body.Object[part]) {
		o.Object[part] = body.Object[part]
		s.put(at, o)
	}
	respond(w, o.Object)
}

// keepConditions adds the conditions that other managers have set.
func keepConditions(body, there map[string]any) {
	all, _, _ := unstructured.NestedSlice(there, "status", "conditions")
	mine, _, _ := unstructured.NestedSlice(body, "status", "conditions")
	for _, c := range all {
		if kind := c.(map[string]any)["type"]; kind != "RetentionActive" && kind != "AddressesShared" {
			mine = append(mine, c)
			_ = unstructured.SetNestedSlice(body, mine, "status", "conditions")
		}
	}
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var o object
	if json.NewDecoder(r.Body).Decode(&o.Object) != nil {
		fail(w, r, http.StatusBadRequest)
		return
	}
	at := path.Join(r.URL.Path, o.GetName())
	if s.objects[at] != nil {
		fail(w, r, http.StatusConflict)
		return
	}
	s.put(at, &o)
	respond(w, o.Object)
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

// NotServed makes Reject respond as to a resource that is not served: with 404 in plain text, not a
// Status.
const NotServed = -404

func fail(w http.ResponseWriter, r *http.Request, code int) {
	if code == NotServed {
		http.NotFound(w, nil)
		return
	}
	status := apierrors.NewGenericServerResponse(code, r.Method, schema.GroupResource{}, "", "", 0, false).ErrStatus
	status.TypeMeta = statusMeta
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status)
}
