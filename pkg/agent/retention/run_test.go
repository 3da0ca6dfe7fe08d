package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

func TestPass(t *testing.T) {
	node, server := fakeapi.NewNode(t), fakeapi.New(t)
	var invalid []string
	w := &Windows{Service: node.Service, Pods: NewPods(nil, "node1"), Limits: NewLimits(nil), Core: server.Clients.Core, Log: fakeapi.Log,
		Invalid: func(p Pod, _ error) { invalid = append(invalid, p.Invalid) }}
	pods := func(annotation string) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "1",
			Annotations: map[string]string{policy.Annotation: annotation}}}
		if err := w.Pods.Replace([]any{p}, ""); err != nil {
			t.Fatal(err)
		}
	}
	window := func() (window time.Duration) {
		t.Helper()
		v, err := node.List(t.Context(), func(l lease.Lease) bool { return l.Name == "db-0" })
		if err != nil || len(v.Leases) != 1 {
			t.Fatalf("%v, %v", v.Leases, err)
		}
		return time.Duration(v.Leases[0].Window)
	}
	expect := func(name string, requeueAfter, want time.Duration) {
		t.Helper()
		if got := w.pass(t.Context()); got != requeueAfter {
			t.Errorf("%s: requeue after %s, want %s", name, got, requeueAfter)
		}
		if got := window(); got != want {
			t.Errorf("%s: the window is %s, want %s", name, got, want)
		}
	}
	node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	expect("the pods are not listed yet", 0, time.Hour)
	pods("10")
	expect("another window", 0, 10*time.Minute)
	before, err := os.Stat(node.Node.Store.Dirs().State + "/leases.db")
	if err != nil {
		t.Fatal(err)
	}
	expect("again", 0, 10*time.Minute)
	if after, err := os.Stat(node.Node.Store.Dirs().State + "/leases.db"); err != nil ||
		after.ModTime() != before.ModTime() {
		t.Errorf("a pass without a change wrote to the store: %v", err)
	}
	pods("soon")
	expect("an invalid annotation", 0, 10*time.Minute)
	if len(invalid) != 1 || !strings.Contains(invalid[0], `"soon" is not a window`) {
		t.Errorf("Invalid was called for %q", invalid)
	}
	node.Release(node.Bind("10.0.0.2", "db-0", "u0", time.Minute, ""))
	pods("1")
	view := func() time.Duration {
		v, err := node.List(t.Context(), func(lease.Lease) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(v.Leases[0].Remaining(v.Now))
	}
	if after := w.pass(t.Context()); after != deferTo-deferBelow {
		t.Errorf("a hold was extended: requeue after %s, want %s", after, deferTo-deferBelow)
	}
	if rest := view(); rest <= time.Minute {
		t.Errorf("%s of the hold is left, want more than %s", rest, time.Minute)
	}

	if err := os.Truncate(node.Node.Store.Dirs().State+"/leases.db", 100); err != nil {
		t.Fatal(err)
	}
	if after := w.pass(t.Context()); after != retry {
		t.Errorf("lost store: requeue after %s, want %s", after, retry)
	}
	node.Update(func(*store.Tx) error { return nil })
	if after := w.pass(t.Context()); after != 0 {
		t.Errorf("empty store: requeue after %s, want 0", after)
	}
}

// TestNamespaceOfALease verifies that a lease gets the UID of its pod's namespace, and that a hold
// of a deleted namespace ends before a pod of its successor, which has the same name, may claim it.
func TestNamespaceOfALease(t *testing.T) {
	node, server := fakeapi.NewNode(t), fakeapi.New(t)
	w := &Windows{Service: node.Service, Pods: NewPods(nil, "node1"), Limits: NewLimits(nil), Core: server.Clients.Core,
		Log: fakeapi.Log}
	namespace := func(uid string) {
		server.Put("/api/v1/namespaces/db", corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "db", UID: types.UID(uid)}})
	}
	pod := func(uid string) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: types.UID(uid),
			ResourceVersion: "1", Annotations: map[string]string{policy.Annotation: "forever"}}}
		if err := w.Pods.Replace([]any{p}, ""); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, requeueAfter time.Duration, want ...string) {
		t.Helper()
		if got := w.pass(t.Context()); got != requeueAfter {
			t.Errorf("%s: requeue after %s, want %s", what, got, requeueAfter)
		}
		view, err := node.List(t.Context(), func(lease.Lease) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range view.Leases {
			got = append(got, l.State.String()+" "+l.NamespaceUID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	bound := node.Bind("10.0.0.2", "db-0", "u1", time.Duration(lease.Forever), "")
	pod("u1")
	server.Reject(func(*http.Request) int { return http.StatusServiceUnavailable })
	expect("the namespace cannot be read", retry, "Bound ")
	server.Reject(nil)
	expect("the namespace is not there", 0, "Bound ")
	namespace("ns1")
	expect("it can", 0, "Bound ns1")
	server.Requests()
	expect("again", 0, "Bound ns1")
	if more := server.Requests(); len(more) > 0 {
		t.Errorf("for a pod whose namespace is known: %q", more)
	}
	bound.NamespaceUID = "ns1"
	node.Release(bound)
	pod("u2")
	expect("the next pod of the namespace", 0, "Held ns1")
	namespace("ns2")
	pod("u3")
	expect("a pod of its successor", 0)
}

// TestBootHoldEndsWithItsPod verifies that a hold that a boot began ends when the list of pods
// shows that the pod, by its UID, is gone, and not before.
func TestBootHoldEndsWithItsPod(t *testing.T) {
	for _, c := range []struct {
		name   string
		listed []string
		stays  bool
	}{
		{"not listed yet", nil, true},
		{"an empty list", []string{}, true},
		{"the pod is there", []string{"db-0 u-1"}, true},
		{"it is gone", []string{"agent u-9"}, false},
		{"another pod has its name", []string{"db-0 u-2"}, false},
	} {
		node := fakeapi.NewNode(t)
		w := &Windows{Service: node.Service, Pods: NewPods(nil, "node1"), Core: fakeapi.New(t).Clients.Core,
			Log: fakeapi.Log}
		if c.listed != nil {
			list := []any{}
			for _, pod := range c.listed {
				name, uid, _ := strings.Cut(pod, " ")
				list = append(list, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name,
					UID: types.UID(uid), ResourceVersion: "1"}})
			}
			if err := w.Pods.Replace(list, ""); err != nil {
				t.Fatal(err)
			}
		}
		l := node.Bind("10.0.0.2", "db-0", "u-1", 0, "")
		l.Holder.BootID, l.BoundAt.BootID = "an earlier boot", "an earlier boot"
		held, err := lease.Apply(l, lease.Orphan{LastHolder: lease.Dead}, node.Node.Clock())
		if err != nil {
			t.Fatal(err)
		}
		node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, held) })
		w.pass(t.Context())
		view, err := node.List(t.Context(), func(lease.Lease) bool { return true })
		if got := len(view.Leases) == 1; err != nil || got != c.stays {
			t.Errorf("%s: %+v, %v; is held: want %v", c.name, view.Leases, err, c.stays)
		}
	}
}

// TestNamespaceIsReadOnce verifies that a namespace is read once for all of its pods.
func TestNamespaceIsReadOnce(t *testing.T) {
	node, server := fakeapi.NewNode(t), fakeapi.New(t)
	w := &Windows{Service: node.Service, Pods: NewPods(nil, "node1"), Limits: NewLimits(nil), Core: server.Clients.Core,
		Log: fakeapi.Log}
	server.Put("/api/v1/namespaces/db", corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: "db", UID: "ns1"}})
	var pods []any
	for i := range 3 {
		name, uid := fmt.Sprint("db-", i), fmt.Sprint("u", i)
		node.Bind(fmt.Sprint("10.0.0.", 2+i), name, uid, time.Duration(lease.Forever), "")
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(uid),
			ResourceVersion: "1", Annotations: map[string]string{policy.Annotation: "forever"}}})
	}
	if err := w.Pods.Replace(pods, ""); err != nil {
		t.Fatal(err)
	}
	w.pass(t.Context())
	if requests := server.Requests(); len(requests) != 1 {
		t.Errorf("%q, want one request", requests)
	}
	view, err := node.List(t.Context(), func(l lease.Lease) bool { return l.NamespaceUID == "ns1" })
	if err != nil || len(view.Leases) != 3 {
		t.Errorf("%+v, %v; want 3 leases", view.Leases, err)
	}
	if err := w.Pods.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	if w.pass(t.Context()); len(w.namespaces.ofPods) > 0 {
		t.Errorf("namespaces of pods that do not exist any more: %v", w.namespaces)
	}
}

// TestNamespaceOfAStatefulSet verifies that no namespace is read for a pod whose StatefulSet is
// known, and that only the UID of a StatefulSet in the same namespace counts.
func TestNamespaceOfAStatefulSet(t *testing.T) {
	server := fakeapi.New(t)
	for _, name := range []string{"db", "other"} {
		server.Put("/api/v1/namespaces/"+name, corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("of-" + name)}})
	}
	set := Owner{Group: "apps", Kind: "StatefulSet", Name: "db"}
	var n namespaces
	for _, c := range []struct {
		what, namespace, pod string
		owner                Owner
		ownerUID             types.UID
		requests             int
	}{
		{"the first pod", "db", "u1", set, "s1", 1},
		{"the same pod", "db", "u1", set, "s1", 0},
		{"its successor", "db", "u2", set, "s1", 0},
		{"of another StatefulSet", "db", "u3", set, "s2", 1},
		{"in another namespace, with a forged owner", "other", "u4", set, "s1", 1},
		{"of the first StatefulSet again", "db", "u5", set, "s1", 0},
		{"of another kind, which may be cluster-scoped", "db", "u6", Owner{Kind: "Node", Name: "a"}, "s3", 1},
		{"its successor", "db", "u7", Owner{Kind: "Node", Name: "a"}, "s3", 1},
		{"without an owner", "db", "u8", Owner{}, "", 1},
	} {
		name := kube.Name{Namespace: c.namespace, Name: "db-0"}
		p := Pod{Name: name, UID: c.pod, ObjectUID: types.UID(c.pod), Owner: c.owner, OwnerUID: c.ownerUID,
			Request: policy.Request{Window: lease.Window(time.Hour)}}
		server.Requests()
		err := n.read(t.Context(), server.Clients.Core, map[kube.Name]Pod{name: p},
			map[kube.Name][]lease.Lease{name: {bound(c.pod, time.Hour)}})
		got := len(server.Requests())
		if err != nil || got != c.requests || n.ofPods[p.ObjectUID] != "of-"+c.namespace {
			t.Errorf("%s: %d requests, want %d; %v, %v", c.what, got, c.requests, n.ofPods, err)
		}
	}
}

// TestNoOtherNamespaceIsReadAfterAnError verifies that an API server that does not answer is asked
// once in a pass.
func TestNoOtherNamespaceIsReadAfterAnError(t *testing.T) {
	server := fakeapi.New(t)
	server.Reject(fakeapi.Always(http.StatusServiceUnavailable))
	pods, leases := map[kube.Name]Pod{}, map[kube.Name][]lease.Lease{}
	for _, namespace := range []string{"a", "b", "c"} {
		name := kube.Name{Namespace: namespace, Name: "db-0"}
		pods[name] = Pod{Name: name, ObjectUID: types.UID(namespace), UID: "u1",
			Request: policy.Request{Window: lease.Window(time.Hour)}}
		leases[name] = []lease.Lease{bound("u1", time.Hour)}
	}
	err := new(namespaces).read(t.Context(), server.Clients.Core, pods, leases)
	if requests := server.Requests(); err == nil || len(requests) != 1 {
		t.Errorf("%v, requests %q; want an error and one request", err, requests)
	}
}

// TestFailedChanges verifies that a pass whose changes cannot be written is repeated and logged.
func TestFailedChanges(t *testing.T) {
	for name, prepare := range map[string]func(node fakeapi.Node, server *fakeapi.Server) (uid string){
		"a window": func(node fakeapi.Node, _ *fakeapi.Server) string {
			node.Bind("10.0.0.2", "db-0", "u1", time.Minute, "")
			return "u1"
		},
		"a hold of a starting pod": func(node fakeapi.Node, _ *fakeapi.Server) string {
			node.Release(node.Bind("10.0.0.2", "db-0", "u0", 30*time.Second, ""))
			return "u1"
		},
		"a hold of a deleted namespace": func(node fakeapi.Node, server *fakeapi.Server) string {
			l := node.Release(node.Bind("10.0.0.2", "db-0", "u0", time.Hour, ""))
			l.NamespaceUID = "ns0"
			node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
			return "u1"
		},
	} {
		node, server := fakeapi.NewNode(t), fakeapi.New(t)
		var out bytes.Buffer
		w := &Windows{Service: node.Service, Pods: NewPods(nil, "node1"), Core: server.Clients.Core,
			Log: slog.New(slog.NewTextHandler(&out, nil))}
		server.Put("/api/v1/namespaces/db", corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1",
			Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "db", UID: "ns1"}})
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0",
			UID: types.UID(prepare(node, server)), ResourceVersion: "1",
			Annotations: map[string]string{policy.Annotation: "60"}}}
		if err := w.Pods.Replace([]any{p}, ""); err != nil {
			t.Fatal(err)
		}
		before := node.Leases()
		fail := failAfterReading(t, node)
		after := w.pass(t.Context())
		fail.end()
		if after != retry || !slices.Equal(node.Leases(), before) ||
			!strings.Contains(out.String(), "updating windows failed") {
			t.Errorf("%s: requeue after %s, leases %v, logged:\n%s", name, after, node.Leases(), out.String())
		}
		if after := w.pass(t.Context()); after == retry {
			t.Errorf("%s, with a store: requeue after %s", name, after)
		}
	}
}

// failure is a store whose file cannot be opened.
type failure struct {
	t    *testing.T
	path string
}

// failAfterReading has the store fail after its next transaction.
func failAfterReading(t *testing.T, node fakeapi.Node) failure {
	s := node.Service.Node.Store
	f := failure{t, filepath.Join(s.Dirs().State, "leases.db")}
	s.Timed = func(store.Timing) {
		s.Timed = nil
		f.check(os.Rename(f.path, f.path+".aside"))
		f.check(os.Mkdir(f.path, 0o700))
	}
	return f
}

// end repairs the store.
func (f failure) end() {
	f.check(os.Remove(f.path))
	f.check(os.Rename(f.path+".aside", f.path))
}

func (f failure) check(err error) {
	if err != nil {
		f.t.Fatal(err)
	}
}

// TestNamespaceUID verifies which responses say that a namespace does not exist, and that the
// resource version of the request is the given one.
func TestNamespaceUID(t *testing.T) {
	server := fakeapi.New(t)
	for name, c := range map[string]struct {
		uid    string
		code   int
		want   string
		failed bool
	}{
		"it exists":               {uid: "ns1", want: "ns1"},
		"it does not exist":       {},
		"a proxy does not know":   {code: fakeapi.NotServed, failed: true},
		"the request is rejected": {code: http.StatusForbidden, failed: true},
	} {
		server.Remove("/api/v1/namespaces/db")
		if c.uid != "" {
			server.Put("/api/v1/namespaces/db", corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1",
				Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "db", UID: types.UID(c.uid)}})
		}
		for _, version := range []string{"", "0"} {
			var asked string
			server.Reject(func(r *http.Request) int { asked = r.URL.Query().Get("resourceVersion"); return c.code })
			got, err := readNamespaceUID(t.Context(), server.Clients.Core, "db", version)
			if got != c.want || (err != nil) != c.failed || asked != version {
				t.Errorf("%s: %q, %v; version %q was requested, want %q", name, got, err, asked, version)
			}
		}
	}
}

// TestRun runs the task until it is stopped.
func TestRun(t *testing.T) {
	node, server := fakeapi.NewNode(t), fakeapi.New(t)
	w := &Windows{Service: node.Service, Pods: NewPods(nil, "node1"), Limits: NewLimits(nil), Core: server.Clients.Core,
		Log: fakeapi.Log}
	l := node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx, nil) }()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "1",
		Annotations: map[string]string{policy.Annotation: "10"}}}
	if err := w.Pods.Replace([]any{p}, ""); err != nil {
		t.Fatal(err)
	}
	window := func() (window time.Duration) {
		err := node.Node.Store.View(t.Context(), func(tx *store.Tx) error {
			now, err := tx.Get(l.Pool, l.Address)
			window = time.Duration(now.Window)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return window
	}
	fakeapi.Until(t, "the lease has the window", func() bool { return window() == 10*time.Minute })
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
