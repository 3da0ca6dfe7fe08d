package publish

import (
	"errors"
	"net/http"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// Each field decides only between leases whose fields before it are equal.
func TestOrder(t *testing.T) {
	less := bound("10.0.0.1", id1, time.Hour)
	less.Pool, less.Holder.IfName = lease.Pool{DataDir: "/a", Network: "a"}, "eth0"
	fields := []func(l *lease.Lease){
		func(l *lease.Lease) { l.Pool.Network = "b" }, func(l *lease.Lease) { l.Pool.DataDir = "/b" },
		func(l *lease.Lease) { l.Holder.IfName = "eth1" }, func(l *lease.Lease) { l.Address = l.Address.Next() },
	}
	if order(less, less) != 0 {
		t.Error("a lease is not equal to itself")
	}
	for i, change := range fields {
		more, rest := less, less
		change(&more)
		for _, later := range fields[i+1:] {
			later(&rest) // these fields of the first are greater
		}
		if order(rest, more) >= 0 || order(more, rest) <= 0 {
			t.Errorf("%+v is not before %+v", rest, more)
		}
	}
}

func TestIsTransient(t *testing.T) {
	for code, want := range map[int]bool{
		http.StatusInternalServerError: true, http.StatusServiceUnavailable: true, http.StatusTooManyRequests: true,
		http.StatusGatewayTimeout: true, http.StatusForbidden: false, http.StatusConflict: false,
		http.StatusNotFound:            false,
		http.StatusUnprocessableEntity: false,
	} {
		err := apierrors.NewGenericServerResponse(code, "PATCH", ipamv1.NodeAddressPoolResource.GroupResource(), "n",
			"", 0, true)
		if got := isTransient(err); got != want {
			t.Errorf("%d: %v, want %v", code, got, want)
		}
	}
	for err, want := range map[error]bool{
		errors.New("no connection"): true,
		apierrors.NewServerTimeout(ipamv1.NodeAddressPoolResource.GroupResource(), "get", 1): true,
		apierrors.NewTimeoutError("slow", 1):                                                 true,
	} {
		if got := isTransient(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

func TestCompareEachPart(t *testing.T) {
	base := func() *ipamv1.IPReservation {
		return &ipamv1.IPReservation{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "1"}},
			Spec:       ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node1", NodeUID: "u"},
			Status:     status(func(s *ipamv1.IPReservationStatus) { s.HeldUntil = &metav1.Time{Time: now.Wall} }),
		}
	}
	later := func(d time.Duration) func(r *ipamv1.IPReservation) {
		return func(r *ipamv1.IPReservation) { r.Status.HeldUntil = &metav1.Time{Time: now.Wall.Add(d)} }
	}
	for name, tt := range map[string]struct {
		alter func(r *ipamv1.IPReservation)
		want  change
	}{
		"equal":              {func(*ipamv1.IPReservation) {}, change{}},
		"another node":       {func(r *ipamv1.IPReservation) { r.Spec.NodeName = "node2" }, change{Spec: true}},
		"released by a user": {func(r *ipamv1.IPReservation) { r.Spec.Release = id1 }, change{}},
		"another label":      {func(r *ipamv1.IPReservation) { r.Labels["a"] = "2" }, change{Spec: true}},
		"a label of others":  {func(r *ipamv1.IPReservation) { r.Labels["b"] = "2" }, change{}},
		"2s later":           {later(2 * time.Second), change{}},
		"2s earlier":         {later(-2 * time.Second), change{}},
		"more than 2s later": {later(2*time.Second + 1), change{Status: true}},
		"no end":             {func(r *ipamv1.IPReservation) { r.Status.HeldUntil = nil }, change{Status: true}},
		"another state": {
			func(r *ipamv1.IPReservation) { r.Status.State = ipamv1.Held },
			change{Status: true}},
		"another spec and 2s later": {
			func(r *ipamv1.IPReservation) { r.Spec.PodName = "x"; later(time.Second)(r) },
			change{Spec: true}},
	} {
		existing := base()
		tt.alter(existing)
		if got := compare(base(), existing); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestIsConfirmedAtTheLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		l     lease.Lease
		pod   podcache.Pod
		want  bool
		again time.Duration
	}{
		"lived long enough": {bound("10.0.0.2", id1, confirmedAfter), podcache.Pod{}, true, 0},
		"a moment too short": {
			bound("10.0.0.2", id1, confirmedAfter-1),
			podcache.Pod{}, false, 1 + 10*time.Millisecond},
		"held, had lived long enough": {
			held(bound("10.0.0.2", id1, confirmedAfter+time.Hour), time.Hour),
			podcache.Pod{}, true, 0},
		"held, had lived too short": {
			held(bound("10.0.0.2", id1, confirmedAfter+time.Hour-1), time.Hour),
			podcache.Pod{}, false, 0},
		"the pod is ready": {bound("10.0.0.2", id1, 1), podcache.Pod{Ready: true, UID: "u1"}, true, 0},
		"another pod is ready": {
			bound("10.0.0.2", id1, confirmedAfter-time.Second),
			podcache.Pod{Ready: true, UID: "u2"}, false, time.Second + 10*time.Millisecond},
		"ready, and the address is held": {
			held(bound("10.0.0.2", id1, 2), 1),
			podcache.Pod{Ready: true, UID: "u1"}, false, 0},
	} {
		p := &plan{}
		got := p.isConfirmed([]lease.Lease{tt.l}, tt.pod, nil, status(func(*ipamv1.IPReservationStatus) {}), now)
		if got != tt.want || p.RequeueAfter != tt.again {
			t.Errorf("%s: %v, again after %s; want %v, %s", name, got, p.RequeueAfter, tt.want, tt.again)
		}
	}
	p := &plan{}
	for _, d := range []time.Duration{time.Hour, time.Minute, time.Hour} {
		p.requeueAfter(d)
	}
	if p.RequeueAfter != time.Minute+10*time.Millisecond {
		t.Errorf("again after %s, want the shortest", p.RequeueAfter)
	}
}

func TestObservedLag(t *testing.T) {
	p := newFixture(t)
	clock := p.Service.Clock()
	p.Service.Clock = func() lease.Instant { return clock }
	since := func(d time.Duration) lease.Instant {
		return lease.Instant{Wall: clock.Wall.Add(-d), Boot: clock.Boot - d, BootID: clock.BootID}
	}
	object := func(change func(*ipamv1.IPReservationStatus)) *ipamv1.IPReservation {
		return &ipamv1.IPReservation{Status: status(change)}
	}
	for name, tt := range map[string]struct {
		lag      time.Duration
		existing *ipamv1.IPReservation
		counts   bool
	}{
		"new":                {time.Second, nil, true},
		"new, at the limit":  {maxLag, nil, true},
		"new, after a start": {maxLag + 1, nil, false},
		"the same":           {time.Second, object(func(*ipamv1.IPReservationStatus) {}), false},
		"another state":      {2 * maxLag, object(func(s *ipamv1.IPReservationStatus) { s.State = "" }), true},
		"a return": {2 * maxLag, object(func(s *ipamv1.IPReservationStatus) { s.State = ipamv1.Held }),
			false},
		"another pod":   {time.Second, object(func(s *ipamv1.IPReservationStatus) { s.PodUID = "u2" }), true},
		"another lease": {time.Second, object(func(s *ipamv1.IPReservationStatus) { s.ID = id2 }), true},
	} {
		p.Metrics = NewMetrics(prometheus.NewRegistry())
		p.observeLag(task{want: &wanted{Since: since(tt.lag), Object: *object(func(*ipamv1.IPReservationStatus) {})},
			existing: tt.existing})
		var m dto.Metric
		if err := p.Metrics.lag.Write(&m); err != nil || (m.Histogram.GetSampleCount() == 1) != tt.counts ||
			tt.counts && m.Histogram.GetSampleSum() != tt.lag.Seconds() {
			t.Errorf("%s: %d samples of %v s, %v; counts: %v", name, m.Histogram.GetSampleCount(),
				m.Histogram.GetSampleSum(), err, tt.counts)
		}
	}
}

// The time for which a pod is expected back is not a lag.
func TestLagOfAHold(t *testing.T) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.after(time.Second)
	p.publish() // not counted, because the lease is older than maxLag
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay + time.Second)
	p.expect("held", p.publish(), "PATCH status")
	var m dto.Metric
	if err := p.Metrics.lag.Write(&m); err != nil {
		t.Fatal(err)
	}
	if n, sum := m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum(); n != 1 || sum != 1 {
		t.Errorf("%d samples of %v s, want one of 1 s", n, sum)
	}
}

// identify says when it runs again, and what the node is.
func TestIdentify(t *testing.T) {
	p := newFixture(t)
	if after := p.identify(t.Context()); after < identityInterval || after > identityInterval*6/5 ||
		p.Publisher.node != node {
		t.Errorf("%+v, again after %s", p.Publisher.node, after)
	}
	p.server.Reject(fakeapi.Always(http.StatusInternalServerError))
	if after := p.identify(t.Context()); after < identityInterval || p.Publisher.node != node {
		t.Errorf("a failed read of a known UID: %+v, again after %s", p.Publisher.node, after)
	}
	p.server.Reject(fakeapi.Always(http.StatusNotFound))
	if after := p.identify(t.Context()); after < retry || after > 2*retry || p.Publisher.node != (nodeIdentity{}) {
		t.Errorf("no node: %+v, again after %s", p.Publisher.node, after)
	}
	p.server.Reject(fakeapi.Always(http.StatusInternalServerError))
	for range 10 {
		p.identify(t.Context())
	}
	if after := p.identify(t.Context()); after < time.Minute || after > 2*time.Minute {
		t.Errorf("after many failed reads: again after %s", after)
	}
	p.server.Reject(nil)
	p.identify(t.Context())
	p.server.Reject(fakeapi.Always(http.StatusNotFound))
	if after := p.identify(t.Context()); after > 2*retry {
		t.Errorf("after a read that succeeded: again after %s", after)
	}
	p.Publisher.node = nodeIdentity{}
	if after := p.pass(t.Context()); after != 0 {
		t.Errorf("a pass without a node: again after %s", after)
	}
}

// An object is ours if both the name and the UID of the node are.
func TestOnlyOurObjectsAreRemoved(t *testing.T) {
	for name, tt := range map[string]struct {
		node, uid string
		remove    bool
	}{
		"ours": {node.Name, node.UID, true}, "another node": {"node2", node.UID, false},
		"another node of that name": {node.Name, "other", false},
	} {
		p := newFixture(t)
		p.identify(t.Context())
		p.server.Put(objects+mine, ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: mine},
			Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: tt.node, NodeUID: tt.uid}})
		p.list()
		p.view.Now = now
		if got := p.taskFor(object).remove; got != tt.remove {
			t.Errorf("%s: removed: %v", name, got)
		}
	}
}

// Every request that fails makes the pass fail, and says which it was.
func TestEachFailedRequestOfTheNodePool(t *testing.T) {
	for _, tt := range []struct{ method, path, want string }{
		{"PATCH", poolPath, "writing the NodeAddressPool"}, {"PATCH", poolPath + "/status", "writing the status"},
	} {
		p := newPoolFixture(t)
		p.server.Reject(func(r *http.Request) int {
			if r.Method == tt.method && r.URL.Path == tt.path {
				return http.StatusForbidden
			}
			return 0
		})
		err := p.update(t.Context())
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.want) || p.rereads != 1 {
			t.Errorf("%s %s: %v, and the node is read %d times", tt.method, tt.path, err, p.rereads)
		}
		requests := p.server.Requests()
		if last := tt.method + " " + tt.path; requests[len(requests)-1] != last {
			t.Errorf("%s fails, and then: %v", last, requests)
		}
		for i, least := range []time.Duration{nodePoolInterval, 2 * nodePoolInterval, 4 * nodePoolInterval} {
			if after := p.pass(t.Context()); after < least || after > least+least/5 {
				t.Errorf("rejected %d times: again after %s, want %s", i+1, after, least)
			}
		}
		p.rereads = 0
		p.server.Reject(fakeapi.Always(http.StatusServiceUnavailable))
		if after := p.pass(t.Context()); after > nodePoolInterval*6/5 || p.rejected != 0 || p.rereads != 0 {
			t.Errorf("unavailable: again after %s, rejected %d times, the node is read %d times", after, p.rejected,
				p.rereads)
		}
		p.server.Reject(nil)
		if err := p.update(t.Context()); err != nil || p.rereads != 0 {
			t.Errorf("%v, the node is read %d times", err, p.rereads)
		}
	}
}

// What had no effect is forgotten as soon as an apply has one.
func TestEffectOfAnApply(t *testing.T) {
	p := newFixture(t)
	p.server.Put(objects+mine, ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: mine}})
	p.list()
	existing, _ := p.Objects.Get(object.String())
	want := &wanted{Object: ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: mine}}}
	p.checkEffect(task{want: want, existing: existing})
	if len(p.noEffect) != 1 {
		t.Errorf("an apply without effect: %v", p.noEffect)
	}
	older := existing.DeepCopy()
	older.ResourceVersion += "0"
	p.checkEffect(task{want: want, existing: older})
	if len(p.noEffect) != 0 {
		t.Errorf("an apply with an effect: %v", p.noEffect)
	}
}

// Each write is counted by its part and result. A failed one, and no other, is repeated after a
// delay that doubles.
func TestWritesAreCountedAndRepeated(t *testing.T) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	fail := func(what string, request func(*http.Request) bool) {
		t.Helper()
		p.delayed = nil
		p.server.Reject(func(r *http.Request) int {
			if request(r) {
				return http.StatusInternalServerError
			}
			return 0
		})
		p.publish() // fails for the first time
		for n, least := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond} {
			if n > 0 {
				p.queue.Add(object)
				p.work(t.Context())
			}
			if len(p.delayed) != n+1 || p.delayed[n] < least || p.delayed[n] > 2*least {
				t.Fatalf("%s failed %d times: repeated after %v", what, n+1, p.delayed)
			}
		}
		p.server.Reject(nil)
		p.queue.Add(object)
		if p.work(t.Context()); len(p.delayed) != 3 || p.failed[object] != 0 {
			t.Errorf("%s succeeded: repeated after %v, %d failures", what, p.delayed, p.failed[object])
		}
	}
	fail("the object", func(r *http.Request) bool { return path.Base(r.URL.Path) == mine })
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay)
	fail("the status", func(r *http.Request) bool { return path.Base(r.URL.Path) == "status" })
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, lease.Lease{}) })
	fail("a deletion", func(r *http.Request) bool { return r.Method == http.MethodDelete })
	err := testutil.GatherAndCompare(p.metrics, strings.NewReader(`
# HELP leasehold_publish_writes_total Writes of IPReservations, by part (spec, status, delete) and result (ok, error).
# TYPE leasehold_publish_writes_total counter
leasehold_publish_writes_total{result="error",what="delete"} 3
leasehold_publish_writes_total{result="error",what="spec"} 3
leasehold_publish_writes_total{result="error",what="status"} 3
leasehold_publish_writes_total{result="ok",what="delete"} 1
leasehold_publish_writes_total{result="ok",what="spec"} 1
leasehold_publish_writes_total{result="ok",what="status"} 2
`), "leasehold_publish_writes_total")
	if err != nil {
		t.Error(err)
	}
}

// An object that does not exist counts as removed; any other error means that it is still there.
func TestRemove(t *testing.T) {
	for code, removed := range map[int]bool{0: true, http.StatusNotFound: true, http.StatusConflict: false,
		http.StatusForbidden: false} {
		p := newFixture(t)
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.list()
		p.publish()
		existing, _ := p.Objects.Get(object.String())
		p.server.Reject(fakeapi.Always(code))
		err := p.Objects.Remove(t.Context(), existing)
		if now, _ := p.Objects.Get(object.String()); (err == nil) != removed || (now == nil) != removed {
			t.Errorf("status %d: %v, and the object is %v", code, err, now)
		}
	}
}

// Nothing is written until the UID of the node is known.
func TestNodePoolWaitsForTheUID(t *testing.T) {
	p := newPoolFixture(t)
	known := p.UID
	p.UID = func() string { return "" }
	if w := p.writes(); w != "" {
		t.Errorf("without a UID: writes %q", w)
	}
	p.UID = known
	if w := p.writes(); w != "node1 status" {
		t.Errorf("with a UID: writes %q", w)
	}
}

// A node whose store was never used has a NodeAddressPool without networks.
func TestNodePoolWithoutAStore(t *testing.T) {
	p := newPoolFixture(t)
	dirs := p.node.Store.Dirs()
	if err := errors.Join(os.RemoveAll(dirs.State), os.RemoveAll(dirs.Run)); err != nil {
		t.Fatal(err)
	}
	p.expect("never used", "node1 status", "?=0+0+?"+unknown)
}
