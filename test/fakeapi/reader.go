package fakeapi

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A Reader is an informer, and what it reads.
type Reader[V any] struct {
	New  func() *kube.Informer[V]
	Kind schema.GroupVersionKind
	Good kube.Object // without a name
	// Limit is how many bytes of heap may be kept of an object; 0 is MaxKept.
	Limit int
}

// Test lets the informer read, in each of the ways that there are, one object that cannot be
// decoded, one that is huge and one of another kind beside good ones. It must leave out the first
// and the third, name the first in one warning, count them, and go on. Test also checks what the
// informer keeps of large objects (testSize), and of many (testMany).
func (r Reader[V]) Test(t *testing.T) {
	formats := []string{"json"}
	if r.Kind.Group == "" {
		formats = append(formats, "protobuf")
	}
	for _, format := range formats {
		for _, way := range []string{"pages", "a watch that lists", "a node's"} {
			t.Run(r.Kind.Kind+" in "+format+", "+way, func(t *testing.T) { r.test(t, format == "protobuf", way) })
		}
	}
	r.testSize(t)
	if r.Limit == 0 { // otherwise there is one object
		r.testMany(t)
	}
}

func (r Reader[V]) test(t *testing.T, isProtobuf bool, way string) {
	var log background.Log
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&log, nil)))
	defer klog.ClearLogger()
	s := &feed{kind: r.Kind, isProtobuf: isProtobuf, streams: way == "a watch that lists", page: 2,
		changed: make(chan struct{})}
	huge := r.Good.DeepCopyObject().(kube.Object)
	huge.SetAnnotations(map[string]string{"a": strings.Repeat("x", 255<<10)})
	for name, o := range map[string]kube.Object{"a": r.Good, "huge": huge, "z": r.Good} {
		s.set(t, name, s.encode(t, o, name))
	}
	s.set(t, "bad", s.bad("bad", "spec"))
	s.set(t, "worse", s.bad("worse", "metadata"))
	s.set(t, "foreign", s.encode(t, &metav1.PartialObjectMetadata{}, ""))
	i, stop := r.run(t, s, way == "a node's")
	names := func() (all []string) {
		views, _ := i.Views()
		for name := range maps.Keys(views) {
			all = append(all, name.Name)
		}
		slices.Sort(all)
		return all
	}
	leftOut := func() int { return int(testutil.ToFloat64(kube.LeftOut.WithLabelValues(t.Name()))) }
	until := func(when string, out int, want ...string) {
		t.Helper()
		background.Eventually(t, func() string {
			if slices.Equal(names(), want) && leftOut() == out {
				return ""
			}
			return fmt.Sprintf("%s: views of %q, %d left out, want %q and %d\n%s", when, names(), leftOut(), want, out,
				&log)
		})
	}
	until("list", 3, "a", "huge", "z")
	s.set(t, "a", s.bad("a", "spec"))
	s.set(t, "b", s.encode(t, r.Good, "b"))
	until("an object becomes bad, and another one is created", 4, "b", "huge", "z")
	s.set(t, "z", nil)
	s.set(t, "bad", nil)
	s.set(t, "a", s.encode(t, r.Good, "a"))
	until("a bad object is deleted, and one becomes good", 2, "a", "b", "huge")
	if s.watches.Load() != 1 {
		t.Errorf("%d watches; want one that goes on", s.watches.Load())
	}
	if i.IsComplete() {
		t.Error("complete, although objects are left out")
	}
	for name, want := range map[string]int{"/bad": 1, "/worse": 1, "/a": 1, "/b": 0, "/huge": 0} {
		if n := strings.Count(log.String(), name+" error="); n != want {
			t.Errorf("%d warnings name %s, want %d\n%s", n, name, want, &log)
		}
	}
	stop()
}

// run has a new informer read a feed, until stop is called.
func (r Reader[V]) run(t *testing.T, s *feed, ofNode bool) (i *kube.Informer[V], stop func()) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	i = r.New()
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(r.Kind, i.NewObject())
	metav1.AddToGroupVersion(scheme, r.Kind.GroupVersion())
	client, err := kube.NewClient(&rest.Config{Host: server.URL, QPS: -1}, server.Client(), scheme,
		r.Kind.GroupVersion())
	must.Succeed(t, err)
	lw, ended := i.ListWatch(client, "things", "", "", ""), make(chan error)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Background()))
	go func() {
		if ofNode {
			ended <- (&kube.NodeInformer[V]{Informer: i, ListWatch: lw, What: t.Name(), Period: time.Second}).Run(ctx)
			return
		}
		ended <- i.Run(ctx, lw, t.Name())
	}()
	return i, func() { cancel(); <-ended }
}

// A feed is an API server with one list, in pages, and one watch at a time.
type feed struct {
	kind       schema.GroupVersionKind
	isProtobuf bool
	streams    bool              // it sends the list with the watch
	page       int               // the objects in a page at most; as many as are asked for if it is 0
	listed     func(isLast bool) // is called for each page; may be nil
	watches    atomic.Int32

	mu      sync.Mutex
	items   []feedItem
	changes []feedItem    // all, in their order
	changed chan struct{} // closed at the next change
}

// A feedItem is an object in JSON, or a message in protobuf, which is nil if it is deleted.
type feedItem struct {
	name string
	raw  []byte
	last []byte // of one that is deleted
}

// set creates, changes or deletes an object.
func (s *feed) set(t *testing.T, name string, raw []byte) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	is := func(i feedItem) bool { return i.name == name }
	n := slices.IndexFunc(s.items, is)
	var before []byte
	if n >= 0 {
		before = s.items[n].raw
		s.items = slices.Delete(s.items, n, n+1)
	}
	if raw != nil {
		s.items = append(s.items, feedItem{name: name, raw: raw})
	}
	s.changes = append(s.changes, feedItem{name, raw, before})
	close(s.changed)
	s.changed = make(chan struct{})
}

// encode returns an object with a name.
func (s *feed) encode(t *testing.T, o kube.Object, name string) []byte {
	t.Helper()
	o = o.DeepCopyObject().(kube.Object)
	o.SetName(name)
	o.SetNamespace("ns")
	o.SetResourceVersion("1")
	if m, isMessage := o.(interface{ Marshal() ([]byte, error) }); s.isProtobuf && isMessage {
		raw, err := m.Marshal()
		must.Succeed(t, err)
		return raw
	}
	o.GetObjectKind().SetGroupVersionKind(s.kind)
	raw, err := json.Marshal(o)
	must.Succeed(t, err)
	return raw
}

// bad returns an object that cannot be decoded because of one part.
func (s *feed) bad(name, part string) []byte {
	if !s.isProtobuf {
		more, other := "", "7" // which is no spec, status or data
		if part == "metadata" {
			more, other = `, "creationTimestamp": "2026-11-29t08:00:00z", "labels": 7`, "{}"
		}
		return fmt.Appendf(nil, `{"apiVersion": %q, "kind": %q, "metadata": {"namespace": "ns", "name": %q, `+
			`"resourceVersion": "1"%s}, "spec": %s, "status": %[5]s, "data": %[5]s}`,
			s.kind.GroupVersion().String(), s.kind.Kind, name, more, other)
	}
	m := metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: "1"}
	raw, _ := m.Marshal()
	if part == "metadata" {
		raw = append(raw, 0x5a, 1, 0xff) // labels
	}
	return append(field(1, raw), 0x12, 1, 0xff) // field 2 has one byte, which is no message
}

// field returns a field of a message in protobuf.
func field(n byte, value []byte) []byte {
	return append(binary.AppendUvarint([]byte{n<<3 | 2}, uint64(len(value))), value...)
}

// envelope returns an object in protobuf as API servers send it.
func (s *feed) envelope(kind string, raw []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: s.kind.GroupVersion().String(), Kind: kind}, Raw: raw}
	data, _ := u.Marshal()
	return append([]byte("k8s\x00"), data...)
}

func (s *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if s.isProtobuf {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	}
	query := r.URL.Query()
	switch isList := query.Get("sendInitialEvents") == "true"; {
	case query.Get("watch") == "":
		s.list(w, query.Get("limit"), query.Get("continue"))
	case isList && !s.streams:
		w.Header().Set("Content-Type", "application/json")
		fail(w, r, http.StatusBadRequest) // as API servers did before they could
	default:
		s.watch(w, r, isList)
	}
}

// list sends a page of the objects.
func (s *feed) list(w http.ResponseWriter, limit, from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, _ := strconv.Atoi(from)
	last := len(s.items)
	if most, _ := strconv.Atoi(limit); most > 0 {
		last = min(last, first+cmp.Or(s.page, most))
	}
	if s.listed != nil {
		s.listed(last == len(s.items))
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(len(s.changes))}
	if last < len(s.items) {
		meta.Continue = strconv.Itoa(last)
	}
	if s.isProtobuf {
		data, _ := meta.Marshal()
		list := field(1, data)
		for _, i := range s.items[first:last] {
			list = append(list, field(2, i.raw)...)
		}
		_, _ = w.Write(s.envelope(s.kind.Kind+"List", list))
		return
	}
	var items []json.RawMessage
	for _, i := range s.items[first:last] {
		items = append(items, i.raw)
	}
	respond(w, map[string]any{"kind": s.kind.Kind + "List", "apiVersion": s.kind.GroupVersion().String(),
		"metadata": meta, "items": items})
}

// watch sends the changes since a version, or the list and those after it.
func (s *feed) watch(w http.ResponseWriter, r *http.Request, isList bool) {
	s.watches.Add(1)
	sent, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	if isList {
		for _, i := range s.items {
			s.send(w, "ADDED", i.raw)
		}
		sent = len(s.changes)
		s.send(w, "BOOKMARK", s.bookmark(sent))
	}
	s.mu.Unlock()
	for {
		s.mu.Lock()
		for _, c := range s.changes[sent:] {
			switch {
			case c.raw == nil:
				s.send(w, "DELETED", c.last)
			case c.last == nil:
				s.send(w, "ADDED", c.raw)
			default:
				s.send(w, "MODIFIED", c.raw)
			}
		}
		sent = len(s.changes)
		changed := s.changed
		s.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// bookmark returns an object that ends the list in a watch.
func (s *feed) bookmark(version int) []byte {
	m := metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version),
		Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	if s.isProtobuf {
		raw, _ := m.Marshal()
		return field(1, raw)
	}
	raw, _ := json.Marshal(map[string]any{"apiVersion": s.kind.GroupVersion().String(), "kind": s.kind.Kind,
		"metadata": m})
	return raw
}

func (s *feed) send(w io.Writer, event string, raw []byte) {
	if !s.isProtobuf {
		respond(w.(http.ResponseWriter), map[string]any{"type": event, "object": json.RawMessage(raw)})
		return
	}
	e := metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: s.envelope(s.kind.Kind, raw)}}
	data, _ := e.Marshal()
	_, _ = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
}
