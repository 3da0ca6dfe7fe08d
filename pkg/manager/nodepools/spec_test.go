package nodepools

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// reservationOf returns a reservation of a pod on a node, whose name is that of both.
func reservationOf(pod, node string, change ...func(*reservation)) *reservation {
	r := &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: pod + "-" + node, ResourceVersion: "1",
		UID: types.UID("uid-" + pod + "-" + node), Generation: 1}, Pod: pod, Node: node, PodUID: "u1"}
	for _, c := range change {
		c(r)
	}
	return r
}

func isBound(r *reservation)     { r.Bound = true }
func isConfirmed(r *reservation) { r.Bound, r.Confirmed = true, true }

func poolsOf(t testing.TB, set *control.Reservations, clock *time.Time) *specReconciler {
	r := newSpecReconciler(set, kube.NewInformer(viewPool, nil), nil, nil)
	r.now = func() time.Time { return *clock }
	r.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(r.queue.ShutDown)
	return r
}

// names returns what the agents should read, by node, such as "node1: db-0-node2".
func (r *specReconciler) names() string {
	var lines []string
	for _, node := range []string{"node1", "node2", "node3"} {
		var names []string
		for _, ref := range r.wanted(node) {
			names = append(names, fmt.Sprintf("%s/%d", ref.Name, ref.Generation))
		}
		if len(names) > 0 {
			lines = append(lines, node+": "+strings.Join(names, " "))
		}
	}
	return strings.Join(lines, ", ")
}

func TestNames(t *testing.T) {
	now := time.Now()
	heldUntil := func(d time.Duration) func(*reservation) {
		return func(r *reservation) { r.Until = now.Add(d) }
	}
	asked := func(r *reservation) { r.Releasing, r.Generation = true, 2 }
	for _, tt := range []struct {
		name    string
		views   []*reservation
		deleted *reservation
		want    string
	}{
		{name: "bound", views: []*reservation{reservationOf("db-0", "node1", isConfirmed)}},
		{name: "held", views: []*reservation{reservationOf("db-0", "node1", heldUntil(time.Hour))}},
		{name: "held forever", views: []*reservation{reservationOf("db-0", "node1")}},
		{name: "to be released", views: []*reservation{reservationOf("db-0", "node1", isBound, asked)},
			want: "node1: db-0-node1/2"},
		{name: "its hold is over", views: []*reservation{reservationOf("db-0", "node1", heldUntil(-control.ClockLag))}},
		{name: "runs elsewhere", views: []*reservation{reservationOf("db-0", "node1", heldUntil(time.Hour)),
			reservationOf("db-0", "node2", isConfirmed), reservationOf("db-0", "node3")},
			want: "node1: db-0-node2/1, node3: db-0-node2/1"},
		{name: "two of its own", views: []*reservation{reservationOf("db-0", "node1"),
			reservationOf("db-0", "node1", func(r *reservation) { r.Name = "another" }),
			reservationOf("db-0", "node2", isConfirmed)}, want: "node1: db-0-node2/1"},
		{name: "does not run elsewhere yet", views: []*reservation{reservationOf("db-0", "node1"),
			reservationOf("db-0", "node2", isBound)}},
		{name: "of another pod", views: []*reservation{reservationOf("db-0", "node1"),
			reservationOf("db-1", "node2", isConfirmed)}},
		{name: "seems to run on two nodes", views: []*reservation{reservationOf("db-0", "node1", isConfirmed),
			reservationOf("db-0", "node2", isConfirmed)}},
		{name: "deleted", deleted: reservationOf("db-0", "node1", heldUntil(time.Hour)), want: "node1: db-0-node1/0"},
		{name: "deleted while bound", deleted: reservationOf("db-0", "node1", isBound), want: "node1: db-0-node1/0"},
		{name: "deleted at the end of its hold", deleted: reservationOf("db-0", "node1", heldUntil(0))},
		{name: "deleted after its release", deleted: reservationOf("db-0", "node1",
			func(r *reservation) { r.Releasing = true })},
		{name: "deleted because the pod runs elsewhere", deleted: reservationOf("db-0", "node1"),
			views: []*reservation{reservationOf("db-0", "node2", isConfirmed)}},
		{name: "deleted and published again", deleted: reservationOf("db-0", "node1"),
			views: []*reservation{reservationOf("db-0", "node1")}},
	} {
		r := poolsOf(t, setOf(t), &now)
		r.set.Handle(kube.Handler[*reservation]{Deleted: r.remember})
		if tt.deleted != nil {
			remove(t, r.set, tt.deleted)
		}
		for _, v := range tt.views {
			show(t, r.set, v)
		}
		check.Equal(t, r.names(), tt.want, tt.name)
		for _, v := range tt.views {
			released := *v
			released.Releasing = true
			show(t, r.set, &released)
			remove(t, r.set, &released)
		}
		now = now.Add(deletedFor)
		if got := r.names(); got != "" || len(r.deleted) > 0 {
			t.Errorf("%s, after the end: %q, %v", tt.name, got, r.deleted)
		}
		now = now.Add(-deletedFor)
	}
}

// Nothing is remembered of the reservations of a node that has left the cluster.
func TestNodeThatIsGoneIsForgotten(t *testing.T) {
	now := time.Now()
	r := poolsOf(t, setOf(t), &now)
	r.set.Handle(kube.Handler[*reservation]{Deleted: r.remember})
	remove(t, r.set, reservationOf("db-0", "node1"))
	now = now.Add(deletedFor)
	if _, err := r.Reconcile(t.Context(), control.RequestFor("node1")); err != nil || len(r.deleted) > 0 {
		t.Errorf("after %s: %v, %v", deletedFor, r.deleted, err)
	}
}

// No namespace keeps the names of another one from an agent.
func TestNamesAreFair(t *testing.T) {
	now := time.Now()
	r := poolsOf(t, setOf(t), &now)
	r.set.Handle(kube.Handler[*reservation]{Deleted: r.remember})
	of := func(namespace string, i int, change ...func(*reservation)) *reservation {
		v := reservationOf(fmt.Sprintf("%s-%03d", namespace, i), "node1", change...)
		v.Namespace = namespace
		show(t, r.set, v)
		return v
	}
	released := func(r *reservation) { r.Releasing = true }
	ending := func(r *reservation) { r.DeletionTimestamp = &metav1.Time{Time: now} }
	for i := range 2 * ipam.MaxReservations {
		remove(t, r.set, of("a", i))
		of("b", i, released, ending) // a finalizer keeps them
		of("c", i, released)
	}
	remove(t, r.set, of("y", 0))
	of("z", 0, released)
	count := map[string]int{}
	refs := r.wanted("node1")
	for _, ref := range refs {
		count[ref.Namespace]++
	}
	if len(refs) != ipam.MaxReservations || count["b"] > 0 || count["z"] != 1 || count["c"] != len(refs)-1 {
		t.Errorf("%v of %d reservations are named; want releases first, those of z among them", count, len(refs))
	}
	for i := range 2 * ipam.MaxReservations { // the agent has done c's releases
		v := reservationOf(fmt.Sprintf("c-%03d", i), "node1", released)
		v.Namespace = "c"
		remove(t, r.set, v)
	}
	clear(count)
	for _, ref := range r.wanted("node1") {
		count[ref.Namespace]++
	}
	if count["y"] != 1 || count["z"] != 1 || count["a"] != ipam.MaxReservations-2 {
		t.Errorf("%v are named; want each namespace in turn", count)
	}
}

// The NodeAddressPool is written if it names something else, also if a former leader has written
// it.
func TestNamesAreWritten(t *testing.T) {
	now := time.Now()
	r, a := poolsOf(t, setOf(t), &now), &api{}
	r.client = a
	written := func(story, node, want string) {
		t.Helper()
		a.patches = nil
		_, err := r.Reconcile(t.Context(), control.RequestFor(node))
		if got := strings.Join(a.patches, ", "); got != want || err != a.err {
			t.Errorf("%s: %q, %v, want %q", story, got, err, want)
		}
	}
	names := func(refs ...reference) {
		must.Succeed(t, r.pools.Update(&ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "node1"},
			Spec: ipam.NodeAddressPoolSpec{Reservations: refs}}))
	}
	written("there is no NodeAddressPool", "node1", "")
	names(reference{Namespace: "db", Name: "old"})
	written("names of a former leader", "node1", `node1 {"spec":{"reservations":null}}`)
	names()
	written("no change", "node1", "")
	released := reservationOf("db-0", "node1", func(r *reservation) { r.Releasing = true })
	show(t, r.set, released)
	const patch = `node1 {"spec":{"reservations":[{"namespace":"db","name":"db-0-node1",` +
		`"uid":"uid-db-0-node1","generation":1}]}}`
	written("to be released", "node1", patch)
	names(referenceTo(released))
	written("no change", "node1", "")
	names()
	a.err = apierrors.NewNotFound(ipam.NodeAddressPoolResource.GroupResource(), "node1")
	_, err := r.Reconcile(t.Context(), control.RequestFor("node1"))
	must.Succeed(t, err, "its NodeAddressPool is gone")
	a.err = io.EOF
	_, err = r.Reconcile(t.Context(), control.RequestFor("node1"))
	check.Is(t, err, io.EOF, "a write that fails")
}
