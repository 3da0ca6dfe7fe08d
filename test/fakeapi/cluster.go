package fakeapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"
)

// Kind is a kind that a Cluster serves, in one version.
type Kind struct {
	schema.GroupVersionKind
	Resource   string
	Namespaced bool
	HasStatus  bool // has the status subresource, which an update of the object does not change
}

// Cluster is a fake API server for a controller-runtime manager: it serves discovery, lists and
// watches, and stores objects. It does not validate them, and calls no webhooks.
type Cluster struct {
	Config *rest.Config

	storage
	kinds   []Kind
	changed *sync.Cond
	closed  bool
	events  []event
}

type object = map[string]any

type event struct {
	version int
	kind    string // ADDED, MODIFIED, DELETED
	under   string // the path of the resource
	object  object
}

// NewCluster starts a cluster without objects. It runs as long as the test.
func NewCluster(t testing.TB, kinds ...Kind) *Cluster {
	c := &Cluster{storage: newStorage(t), kinds: kinds}
	c.changed = sync.NewCond(&c.mu)
	server := httptest.NewServer(c)
	t.Cleanup(func() {
		c.mu.Lock()
		c.closed = true
		c.changed.Broadcast()
		c.mu.Unlock()
		server.CloseClientConnections()
		server.Close()
	})
	c.Config = &rest.Config{Host: server.URL, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}
	return c
}

func prefix(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.String()
}

// target is the resource or object of a request.
type target struct {
	kind      Kind
	resource  string // its path
	path      string // of the object; "" for a list
	namespace string // of a list in one namespace
	status    bool
}

func (c *Cluster) find(path string) (at target, ok bool) {
	for _, k := range c.kinds {
		rest, ok := strings.CutPrefix(path, prefix(k.GroupVersion())+"/")
		if !ok {
			continue
		}
		elements := strings.Split(rest, "/")
		at := target{kind: k, resource: prefix(k.GroupVersion()) + "/" + k.Resource}
		if len(elements) > 2 && elements[0] == "namespaces" && k.Namespaced {
			at.namespace, elements = elements[1], elements[2:]
		}
		if elements[0] != k.Resource || len(elements) > 3 || len(elements) == 3 && elements[2] != "status" {
			continue
		}
		at.status = len(elements) == 3
		if len(elements) > 1 {
			at.path = strings.TrimSuffix(path, "/status")
		}
		return at, true
	}
	return target{}, false
}

// ServeHTTP serves a request.
func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if found := c.discover(r.URL.Path); found != nil {
		respond(w, found)
		return
	}
	at, ok := c.find(r.URL.Path)
	if !ok {
		fail(w, http.StatusNotFound)
		return
	}
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodGet && query.Get("watch") != "" && query.Get("sendInitialEvents") != "":
		fail(w, http.StatusBadRequest) // as older API servers do
		return
	case r.Method == http.MethodGet && query.Get("watch") != "":
		c.watch(w, r, at)
		return
	}
	var body object
	if r.Method != http.MethodGet {
		_ = json.NewDecoder(r.Body).Decode(&body) // a DELETE may have none
	}
	c.serve(w, r, at, body)
}

// serve serves a request other than discovery and watches.
func (c *Cluster) serve(w http.ResponseWriter, r *http.Request, at target, body object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.objects[at.path]
	switch {
	case r.Method == http.MethodGet && at.path == "":
		c.list(w, r, at)
	case r.Method == http.MethodPost && at.path == "":
		c.create(w, r, at, body)
	case old == nil:
		fail(w, http.StatusNotFound)
	case r.Method == http.MethodGet:
		respond(w, old)
	case r.Method == http.MethodPut:
		c.replace(w, at, body)
	case r.Method == http.MethodPatch:
		c.patch(w, r, at, body)
	case r.Method == http.MethodDelete:
		preconditions, _ := body["preconditions"].(object)
		if !isVersion(old, preconditions, "uid", "resourceVersion") {
			fail(w, http.StatusConflict)
			return
		}
		c.remove(at.path)
		succeed(w)
	default:
		fail(w, http.StatusMethodNotAllowed)
	}
}

// isVersion reports whether an object has the fields of its metadata that a request requires.
func isVersion(o, required object, fields ...string) bool {
	return !slices.ContainsFunc(fields, func(field string) bool {
		return required[field] != nil && required[field] != metaOf(o)[field]
	})
}

func (c *Cluster) create(w http.ResponseWriter, r *http.Request, at target, body object) {
	meta := metaOf(body)
	if meta["name"] == nil {
		meta["name"] = fmt.Sprint(meta["generateName"], c.version)
	}
	at.path = r.URL.Path + "/" + fmt.Sprint(meta["name"])
	if c.objects[at.path] != nil {
		fail(w, http.StatusConflict)
		return
	}
	respond(w, c.write(at, body))
}

// replace serves a PUT, which changes either the status or all but the status.
func (c *Cluster) replace(w http.ResponseWriter, at target, body object) {
	old := c.objects[at.path]
	if !isVersion(old, metaOf(body), "resourceVersion") {
		fail(w, http.StatusConflict)
		return
	}
	written := body
	if at.kind.HasStatus && at.status {
		written = maps.Clone(old)
		written["status"] = body["status"]
	} else if at.kind.HasStatus {
		written["status"] = old["status"]
	}
	respond(w, c.write(at, written))
}

// patch serves merge patches, and strategic ones of pods. A patch of the status changes nothing
// else, and one of the object changes all but the status.
func (c *Cluster) patch(w http.ResponseWriter, r *http.Request, at target, change object) {
	old := c.objects[at.path]
	if !isVersion(old, metaOf(change), "uid", "resourceVersion") {
		fail(w, http.StatusConflict)
		return
	}
	before, err := json.Marshal(old)
	if err != nil {
		c.t.Error(err)
	}
	data, err := json.Marshal(change)
	if err != nil {
		c.t.Error(err)
	}
	var after []byte
	if r.Header.Get("Content-Type") == string(types.StrategicMergePatchType) {
		after, err = strategicpatch.StrategicMergePatch(before, data, corev1.Pod{})
	} else {
		after, err = jsonpatch.MergePatch(before, data)
	}
	var patched object
	if err == nil {
		err = json.Unmarshal(after, &patched)
	}
	if err != nil {
		fail(w, http.StatusBadRequest)
		return
	}
	written := patched
	if at.status {
		written = maps.Clone(old)
		written["status"] = patched["status"]
	} else if old["status"] != nil {
		written["status"] = old["status"]
	}
	respond(w, c.write(at, written))
}

func metaOf(o object) object {
	meta, _ := o["metadata"].(object)
	if meta == nil {
		meta = object{}
		if o != nil {
			o["metadata"] = meta
		}
	}
	return meta
}

// write stores an object, unless it is unchanged.
func (c *Cluster) write(at target, o object) object {
	meta, old, kind := maps.Clone(metaOf(o)), c.objects[at.path], "ADDED"
	o = maps.Clone(o)
	o["metadata"] = meta
	if old != nil {
		kind, meta["uid"], meta["creationTimestamp"] = "MODIFIED", metaOf(old)["uid"], metaOf(old)["creationTimestamp"]
		meta["resourceVersion"] = metaOf(old)["resourceVersion"]
		if reflect.DeepEqual(o, old) {
			return old
		}
	}
	c.version++
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprint("uid-", c.version)
	}
	if meta["creationTimestamp"] == nil {
		meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	}
	meta["resourceVersion"] = strconv.Itoa(c.version)
	o["apiVersion"], o["kind"] = at.kind.GroupVersion().String(), at.kind.Kind
	c.objects[at.path] = o
	c.emit(kind, at.resource, o)
	return o
}

func (c *Cluster) emit(kind, resource string, o object) {
	c.events = append(c.events, event{c.version, kind, resource, o})
	c.changed.Broadcast()
}

func (c *Cluster) remove(path string) {
	o := c.objects[path]
	at, ok := c.find(path)
	if o == nil || !ok {
		return
	}
	c.version++
	delete(c.objects, path)
	gone := maps.Clone(o)
	gone["metadata"] = maps.Clone(metaOf(o))
	metaOf(gone)["resourceVersion"] = strconv.Itoa(c.version)
	c.emit("DELETED", at.resource, gone)
}

func (c *Cluster) list(w http.ResponseWriter, r *http.Request, at target) {
	list := object{"apiVersion": at.kind.GroupVersion().String(), "kind": at.kind.Kind + "List",
		"metadata": object{"resourceVersion": strconv.Itoa(c.version)}}
	items := []any{}
	for _, path := range slices.Sorted(maps.Keys(c.objects)) {
		if in, _ := c.find(path); in.resource == at.resource && (at.namespace == "" || in.namespace == at.namespace) {
			items = append(items, asAsked(r, c.objects[path]))
		}
	}
	if asMetadata(r) {
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	list["items"] = items
	respond(w, list)
}

func asMetadata(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

func asAsked(r *http.Request, o object) object {
	if !asMetadata(r) {
		return o
	}
	return object{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]}
}

// watch sends the events after a version, until the client disconnects or the test ends.
func (c *Cluster) watch(w http.ResponseWriter, r *http.Request, at target) {
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.Context().Done():
			c.mu.Lock()
			c.changed.Broadcast()
			c.mu.Unlock()
		case <-stop:
		}
	}()
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for r.Context().Err() == nil {
		c.mu.Lock()
		next := slices.IndexFunc(c.events, func(e event) bool {
			return e.version > since && e.under == at.resource && (at.namespace == "" ||
				metaOf(e.object)["namespace"] == at.namespace)
		})
		if next < 0 && !c.closed {
			c.changed.Wait()
			c.mu.Unlock()
			continue
		}
		if c.closed {
			c.mu.Unlock()
			return
		}
		e := c.events[next]
		c.mu.Unlock()
		since = e.version
		_ = json.NewEncoder(w).Encode(object{"type": e.kind, "object": asAsked(r, e.object)})
		w.(http.Flusher).Flush()
	}
}

func (c *Cluster) discover(path string) any {
	versions := map[string]metav1.APIResourceList{}
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}}
	for _, k := range c.kinds {
		gv := k.GroupVersion()
		list := versions[prefix(gv)]
		list.TypeMeta, list.GroupVersion = metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, gv.String()
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.Resource, Namespaced: k.Namespaced,
			Kind:  k.Kind,
			Verbs: metav1.Verbs{"get", "list", "watch", "create", "update", "delete"}})
		versions[prefix(gv)] = list
		if v := (metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}); gv.Group != "" &&
			!slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == gv.Group }) {
			groups.Groups = append(groups.Groups, metav1.APIGroup{Name: gv.Group, PreferredVersion: v,
				Versions: []metav1.GroupVersionForDiscovery{v}})
		}
	}
	switch list, ok := versions[path]; {
	case ok:
		return list
	case path == "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case path == "/apis":
		return groups
	}
	return nil
}

// Put creates or replaces an object, including its status.
func (c *Cluster) Put(path string, o any) {
	c.t.Helper()
	at, ok := c.find(path)
	if !ok {
		c.t.Fatalf("%s is not served", path)
	}
	body := toObject(c.t, o)
	c.mu.Lock()
	defer c.mu.Unlock()
	elements := strings.Split(path, "/")
	metaOf(body)["name"] = elements[len(elements)-1]
	if at.namespace != "" {
		metaOf(body)["namespace"] = at.namespace
	}
	c.write(at, body)
}

// Remove deletes an object.
func (c *Cluster) Remove(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(path)
}

// Until waits until a condition is true, at most two minutes.
func (c *Cluster) Until(what string, condition func() bool) {
	c.t.Helper()
	Until(c.t, what, condition)
}

// Until waits until a condition is true, at most two minutes.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out after two minutes waiting until %s", what)
		}
	}
}

// List decodes the list of a resource.
func (c *Cluster) List(path string, into any) {
	c.t.Helper()
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		c.t.Fatal(err)
	}
}
