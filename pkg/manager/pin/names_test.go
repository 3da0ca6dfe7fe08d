package pin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
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

// names returns what the namer would name now, by node, such as "node1: db-0-node2".
func (n *namer) names() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(n.nodes)) {
		var names []string
		for _, ref := range n.namesOf(node) {
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
	asked := func(r *reservation) { r.HasRelease, r.Generation = true, 2 }
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
		{name: "its hold is over", views: []*reservation{reservationOf("db-0", "node1", heldUntil(-clockLag))},
			want: "node1: db-0-node1/1"},
		{name: "its hold is perhaps over",
			views: []*reservation{reservationOf("db-0", "node1", heldUntil(time.Second-clockLag))}},
		{name: "runs elsewhere", views: []*reservation{reservationOf("db-0", "node1", heldUntil(time.Hour)),
			reservationOf("db-0", "node2", isConfirmed), reservationOf("db-0", "node3")},
			want: "node1: db-0-node2/1, node3: db-0-node2/1"},
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
			func(r *reservation) { r.HasRelease, r.Releasing = true, true })},
		{name: "deleted because the pod runs elsewhere", deleted: reservationOf("db-0", "node1"),
			views: []*reservation{reservationOf("db-0", "node2", isConfirmed)}},
		{name: "deleted and published again", deleted: reservationOf("db-0", "node1"),
			views: []*reservation{reservationOf("db-0", "node1")}},
	} {
		n := newNamer(clusterOf(t, nil, &now), nil, nil, logr.Discard())
		n.cluster.reservations.Handle(n.handler())
		if tt.deleted != nil {
			n.cluster.add(t, tt.deleted)
			if err := n.cluster.reservations.Delete(tt.deleted); err != nil {
				t.Fatal(err)
			}
		}
		for _, v := range tt.views {
			n.cluster.add(t, v)
		}
		if got := n.names(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		for _, v := range tt.views {
			v.HasRelease, v.Releasing = true, true
			if err := n.cluster.reservations.Delete(v); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(deletedFor)
		n.recheck()
		if got := n.names(); got != "" || len(n.pods)+len(n.deleted) > 0 {
			t.Errorf("%s, after the end: %q, %v, %v", tt.name, got, n.pods, n.deleted)
		}
		now = now.Add(-deletedFor)
	}
}

// A hold that ends is named without an event.
func TestNamesOfHoldsThatEnd(t *testing.T) {
	now := time.Now()
	n := newNamer(clusterOf(t, nil, &now, reservationOf("db-0", "node1",
		func(r *reservation) { r.Until = now.Add(time.Minute) })), nil, nil, logr.Discard())
	n.cluster.reservations.Handle(n.handler())
	n.recheck()
	if got := n.names(); got != "" {
		t.Error(got)
	}
	now = now.Add(time.Minute + clockLag)
	n.recheck()
	if got := n.names(); got != "node1: db-0-node1/1" {
		t.Errorf("after its end: %q", got)
	}
}

// The NodeAddressPool is written if the names differ from those that it has.
func TestNamesAreWritten(t *testing.T) {
	now := time.Now()
	a := newAPI(t)
	nodes := map[string]*corev1.Node{"node1": node("node1")}
	n := newNamer(clusterOf(t, nodes, &now), a.client, a.client, logr.Discard())
	a.answer = func(call string, _ *http.Request) (int, any) {
		if strings.HasPrefix(call, "GET ") {
			return 0, ipam.NodeAddressPoolList{Items: []ipam.NodeAddressPool{
				{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Spec: ipam.NodeAddressPoolSpec{
					Reservations: []reference{{Namespace: "db", Name: "old"}}}},
				{ObjectMeta: metav1.ObjectMeta{Name: "node2"}}}}
		}
		return 0, nil
	}
	if err := n.readPools(t.Context()); err != nil {
		t.Fatal(err)
	}
	const path = "/apis/ipam.leasehold.dev/v1alpha1/nodeaddresspools"
	a.saw(t, "the start", "GET "+path)
	n.cluster.reservations.Handle(n.handler())
	write := func() {
		t.Helper()
		if err := n.write(t.Context(), "node1"); err != nil {
			t.Fatal(err)
		}
	}
	write()
	a.saw(t, "names of a former leader", `PATCH `+path+`/node1 {"spec":{"reservations":null}}`)
	write()
	a.saw(t, "no change")
	r := reservationOf("db-0", "node1", func(r *reservation) { r.HasRelease = true })
	n.cluster.add(t, r)
	write()
	a.saw(t, "to be released", `PATCH `+path+`/node1 {"spec":{"reservations":[{"namespace":"db","name":"db-0-node1",`+
		`"uid":"uid-db-0-node1","generation":1}]}}`)
	write()
	a.saw(t, "no change")
	a.answer = func(string, *http.Request) (int, any) { return http.StatusServiceUnavailable, nil }
	again := reservationOf("db-0", "node1", func(r *reservation) { r.HasRelease, r.Generation = true, 2 })
	n.cluster.add(t, again)
	if err := n.write(t.Context(), "node1"); err == nil {
		t.Error("a failed write returns no error")
	}
	a.calls, a.answer = nil, func(string, *http.Request) (int, any) { return http.StatusNotFound, nil }
	write()
	if len(a.calls) != 1 {
		t.Errorf("there is no NodeAddressPool: %v", a.calls)
	}
	a.calls, a.answer = nil, func(string, *http.Request) (int, any) { return 0, nil }
	write()
	if len(a.calls) != 1 {
		t.Errorf("there is one again: %v", a.calls)
	}
	a.calls = nil
	n.cluster.add(t, reservationOf("db-0", "node9", func(r *reservation) { r.HasRelease = true }))
	if err := n.write(t.Context(), "node9"); err != nil {
		t.Error(err)
	}
	a.saw(t, "the node does not exist")
}

// A NodeAddressPool names at most as many reservations as its CRD allows.
func TestNamesAreLimited(t *testing.T) {
	now := time.Now()
	n := newNamer(clusterOf(t, nil, &now), nil, nil, logr.Discard())
	n.cluster.reservations.Handle(n.handler())
	for i := range ipam.MaxReservations + 5 {
		n.cluster.add(t, reservationOf(fmt.Sprintf("db-%03d", i), "node1",
			func(r *reservation) { r.HasRelease = true }))
	}
	if refs := n.namesOf("node1"); len(refs) != ipam.MaxReservations || refs[0].Name != "db-000-node1" {
		t.Errorf("%d names, the first is %s", len(refs), refs[0].Name)
	}
}

// A running namer names a reservation that a user releases, and one that is deleted.
func TestManagerNamesReservations(t *testing.T) {
	w, mgr := newManager(t)
	ctx, stop := context.WithCancel(t.Context())
	c, err := newCluster(ctx, mgr, time.Now)
	if err == nil {
		err = mgr.Add(newNamer(c, mgr.GetAPIReader(), mgr.GetClient(), logr.Discard()))
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() { stop(); <-ended }()
	const pool = "/apis/ipam.leasehold.dev/v1alpha1/nodeaddresspools/node1"
	w.Put(pool, ipam.NodeAddressPool{})
	names := func(want string) func() bool {
		return func() bool {
			var p ipam.NodeAddressPool
			w.Get(pool, &p)
			var got []string
			for _, ref := range p.Spec.Reservations {
				got = append(got, ref.Namespace+"/"+ref.Name)
			}
			return strings.Join(got, " ") == want
		}
	}
	r := ipam.IPReservation{Spec: ipam.IPReservationSpec{PodName: "db-0", NodeName: "node1", NodeUID: "uid-node1",
		Release: "0123456789abcdef"}, Status: ipam.IPReservationStatus{ID: "0123456789abcdef", State: ipam.Held}}
	w.Put(reservationsIn+"a", r)
	w.Until("it is named", names("db/a"))
	w.Remove(reservationsIn + "a")
	w.Until("it is released", names(""))
	r.Spec.Release = ""
	w.Put(reservationsIn+"a", r)
	w.Remove(reservationsIn + "a")
	w.Until("its deletion is named", names("db/a"))
	w.Put(reservationsIn+"a", r)
	w.Until("it is published again", names(""))
}
