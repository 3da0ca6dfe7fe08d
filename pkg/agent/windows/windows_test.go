package windows

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

// newTask returns the task of a node with a fake API server, and its log.
func newTask(t *testing.T) (w *Task, node fakeapi.Node, server *fakeapi.Server, log *bytes.Buffer) {
	node, server, log = fakeapi.NewNode(t), fakeapi.New(t), &bytes.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	return &Task{Node: retention.NewNode(node.Service, nil, logger, "node1", server.Clients)}, node, server, log
}

func TestPass(t *testing.T) {
	w, node, _, _ := newTask(t)
	var invalid []string
	w.Invalid = func(p retention.Pod) { invalid = append(invalid, p.Invalid) }
	pods := func(annotation string) {
		t.Helper()
		must.Succeed(t, w.Pods.Replace([]any{fakeapi.Pod("db-0", "u1", annotation)}, ""))
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
		check.Equal(t, w.pass(t.Context()), requeueAfter, name, "requeue after")
		check.Equal(t, window(), want, name, "the window is")
	}
	node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	expect("the pods are not listed yet", 0, time.Hour)
	pods("10")
	expect("another window", 0, 10*time.Minute)
	before, err := os.Stat(node.Node.Store.Dirs().State + "/leases.db")
	must.Succeed(t, err)
	expect("again", 0, 10*time.Minute)
	after, err := os.Stat(node.Node.Store.Dirs().State + "/leases.db")
	must.Succeed(t, err)
	check.Equal(t, after.ModTime(), before.ModTime(), "after a pass without a change")
	pods("soon")
	expect("an invalid annotation", 0, 10*time.Minute)
	if len(invalid) != 1 || !strings.Contains(invalid[0], `"soon" is not a window`) {
		t.Errorf("Invalid was called for %q", invalid)
	}
	node.Release(node.Bind("10.0.0.2", "db-0", "u0", time.Minute, ""))
	pods("1")
	view := func() time.Duration {
		v, err := node.List(t.Context(), func(lease.Lease) bool { return true })
		must.Succeed(t, err)
		return time.Duration(v.Leases[0].Remaining(v.Now))
	}
	check.Equal(t, w.pass(t.Context()), deferTo-deferBelow, "a hold was extended: requeue after")
	if rest := view(); rest <= time.Minute {
		t.Errorf("%s of the hold is left, want more than %s", rest, time.Minute)
	}

	must.Succeed(t, os.Truncate(node.Node.Store.Dirs().State+"/leases.db", 100))
	check.Equal(t, w.pass(t.Context()), retry, "lost store: requeue after")
	node.Update(func(*store.Tx) error { return nil })
	check.Equal(t, w.pass(t.Context()), 0, "empty store: requeue after")
}

// TestNamespaceOfALease verifies that a lease gets the UID of its pod's namespace, and that a hold
// of a deleted namespace ends before a pod of its successor, which has the same name, may claim it.
func TestNamespaceOfALease(t *testing.T) {
	w, node, server, _ := newTask(t)
	pod := func(uid string) {
		t.Helper()
		must.Succeed(t, w.Pods.Replace([]any{fakeapi.Pod("db-0", uid, "forever")}, ""))
	}
	expect := func(what string, requeueAfter time.Duration, want ...string) {
		t.Helper()
		check.Equal(t, w.pass(t.Context()), requeueAfter, what, "requeue after")
		view, err := node.List(t.Context(), func(lease.Lease) bool { return true })
		must.Succeed(t, err)
		var got []string
		for _, l := range view.Leases {
			got = append(got, l.State.String()+" "+l.NamespaceUID)
		}
		check.Slices(t, got, want, what)
	}
	bound := node.Bind("10.0.0.2", "db-0", "u1", time.Duration(lease.Forever), "")
	pod("u1")
	server.Reject(func(*http.Request) int { return http.StatusServiceUnavailable })
	expect("the namespace cannot be read", retry, "Bound ")
	server.Reject(nil)
	expect("the namespace is not there", 0, "Bound ")
	server.PutCore("Namespace", "db", "ns1")
	expect("it can", 0, "Bound ns1")
	server.Requests()
	expect("again", 0, "Bound ns1")
	check.Empty(t, server.Requests(), "for a pod whose namespace is known")
	bound.NamespaceUID = "ns1"
	node.Release(bound)
	pod("u2")
	expect("the next pod of the namespace", 0, "Held ns1")
	server.PutCore("Namespace", "db", "ns2")
	pod("u3")
	expect("a pod of its successor", 0)
}

// TestBootHoldEndsWithItsPod verifies that a hold that a boot began ends when the list of pods
// shows that the pod, by its UID, is gone, and not before. A hold without a key belongs to no pod.
func TestBootHoldEndsWithItsPod(t *testing.T) {
	for _, c := range []struct {
		name   string
		listed []string
		keyed  bool
		stays  bool
	}{
		{"not listed yet", nil, true, true},
		{"an empty list", []string{}, true, true},
		{"the pod is there", []string{"db-0 u-1"}, true, true},
		{"it is gone", []string{"agent u-9"}, true, false},
		{"another pod has its name", []string{"db-0 u-2"}, true, false},
		{"a pod cannot be decoded", []string{"agent u-9", "unknown"}, true, true},
		{"it has no key", []string{"agent u-9"}, false, true},
	} {
		w, node, _, log := newTask(t)
		if c.listed != nil {
			list := []any{}
			for _, pod := range c.listed {
				name, uid, isDecoded := strings.Cut(pod, " ")
				m := metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(uid), ResourceVersion: "1"}
				if list = append(list, &corev1.Pod{ObjectMeta: m}); !isDecoded {
					list[len(list)-1] = &kube.Undecodable{ObjectMeta: m, Err: kube.ErrUndecodable}
				}
			}
			must.Succeed(t, w.Pods.Replace(list, ""))
		}
		l := node.Bind("10.0.0.2", "db-0", "u-1", 0, "")
		l.Holder.BootID, l.BoundAt.BootID, l.Superseded = "an earlier boot", "an earlier boot", !c.keyed
		e := lease.Release{Holder: l.Holder, Collected: true, LastHolder: lease.Dead}
		held, err := lease.Apply(l, e, node.Node.Clock())
		must.Succeed(t, err)
		node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, held) })
		w.pass(t.Context())
		view, err := node.List(t.Context(), func(lease.Lease) bool { return true })
		if got := len(view.Leases) == 1; err != nil || got != c.stays || c.stays && log.Len() > 0 {
			t.Errorf("%s: %+v, %v; is held: want %v; logged: %s", c.name, view.Leases, err, c.stays, log)
		}
	}
}

// A hold that cannot be ended, because it is not proven that the agent sees the host, keeps no
// window from being set. The reason is logged once, and in a metric.
func TestAFailureStopsNoOtherChange(t *testing.T) {
	w, node, server, log := newTask(t)
	failing := prometheus.NewGauge(prometheus.GaugeOpts{})
	w.Problem.Failing = failing
	server.PutCore("Namespace", "db", "ns2")
	former := node.Bind("10.0.0.2", "db-0", "u0", time.Hour, "")
	former.NamespaceUID = "ns1"
	node.Release(former)
	node.Bind("10.0.0.3", "db-1", "u1", time.Hour, "")
	pods := []any{fakeapi.Pod("db-0", "u2", "10m"), fakeapi.Pod("db-1", "u1", "10m")}
	must.Succeed(t, w.Pods.Replace(pods, ""))
	ids := node.Node.Host.NamespaceIDs(fakeapi.Boot)
	for _, c := range []struct {
		ids, leases, logged string
		requeueAfter        time.Duration
		failing             float64
	}{
		{fakeapi.Boot + " others", "10.0.0.2 1h0m0s, 10.0.0.3 10m0s, ", operation.ErrNoHostView.Error(), retry, 1},
		{fakeapi.Boot + " others", "10.0.0.2 1h0m0s, 10.0.0.3 10m0s, ", "", retry, 1},
		{ids, "10.0.0.3 10m0s, ", "updating windows works again", 0, 0},
	} {
		node.Update(func(tx *store.Tx) error { return tx.SetNamespaceIDs(c.ids) })
		log.Reset()
		after := w.pass(t.Context())
		view, err := node.List(t.Context(), func(lease.Lease) bool { return true })
		var leases string
		for _, l := range view.Leases {
			leases += fmt.Sprint(l.Address, " ", l.Window, ", ")
		}
		warned := strings.Count(log.String(), "level=WARN")
		if leases != c.leases || err != nil || after != c.requeueAfter || testutil.ToFloat64(failing) != c.failing ||
			!strings.Contains(log.String(), c.logged) || (c.logged == "") != (log.Len() == 0) || warned > 1 {
			t.Errorf("%s: the leases are %s, %v, want %s; the metric is %v; again after %s; logged: %s", c.ids, leases,
				err, c.leases, testutil.ToFloat64(failing), after, log)
		}
	}
}

// TestNamespaceOfAStatefulSet verifies that no namespace is read for a pod whose StatefulSet is
// known, and that only the UID of a StatefulSet in the same namespace counts.
func TestNamespaceOfAStatefulSet(t *testing.T) {
	server := fakeapi.New(t)
	for _, name := range []string{"db", "other"} {
		server.PutCore("Namespace", name, "of-"+name)
	}
	n := namespaces{}
	for _, c := range []struct {
		what, namespace, pod string
		set                  types.UID
		requests             int
	}{
		{"the first pod", "db", "u1", "s1", 1},
		{"the same pod", "db", "u1", "s1", 0},
		{"its successor", "db", "u2", "s1", 0},
		{"of another StatefulSet", "db", "u3", "s2", 1},
		{"in another namespace, with a forged owner", "other", "u4", "s1", 1},
		{"of the first StatefulSet again", "db", "u5", "s1", 0},
		{"without an owner", "db", "u6", "", 1},
		{"with that pod as a forged owner", "db", "u7", "u6", 1},
	} {
		name := kube.Name{Namespace: c.namespace, Name: "db-0"}
		p := retention.Pod{Name: name, UID: c.pod, ObjectUID: types.UID(c.pod), Set: c.set,
			Window: lease.Window(time.Hour)}
		server.Requests()
		err := n.read(t.Context(), server.Clients.Core, map[kube.Name]retention.Pod{name: p},
			map[kube.Name][]lease.Lease{name: {bound(c.pod, time.Hour)}})
		got := len(server.Requests())
		if err != nil || got != c.requests || n[ownerOf(p)] != "of-"+c.namespace {
			t.Errorf("%s: %d requests, want %d; %v, %v", c.what, got, c.requests, n, err)
		}
	}
}
