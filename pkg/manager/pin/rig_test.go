package pin

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/must"
)

type reservation = control.Reservation

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// held waits for a ten-minute window that ends some time after noon.
func held(node, version string, left time.Duration) *reservation {
	return &reservation{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}, Node: node,
		Until: noon.Add(left), Window: lease.Window(10 * time.Minute)}
}

// reservationOfPod is a reservation of the pod db/db-0, which was published some minutes after
// noon.
func reservationOfPod(name, node, uid string, minutes int) *reservation {
	return &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("uid-" + name),
		ResourceVersion:   "1",
		CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute))}, Pod: "db-0", Node: node,
		PodUID: uid, Until: noon.Add(time.Hour + time.Duration(minutes)*time.Minute), Window: lease.Window(time.Hour)}
}

// clusterOf returns a cluster with nodes and views, and a clock that only the test changes. Its
// replica is the leader.
func clusterOf(t testing.TB, nodes map[string]*corev1.Node, clock *time.Time, views ...any) *cluster {
	t.Helper()
	set := control.NewReservations(func(r *reservation) *reservation { return r })
	all := kube.NewInformer(control.TrimNode, nil)
	c := emptyCluster(func() time.Time { return *clock }, func(p *podView) *podView { return p }, set, all)
	var objects []any
	for _, n := range nodes {
		objects = append(objects, n)
	}
	must.Succeed(t, errors.Join(all.Replace(objects, ""), c.pods.Replace(nil, ""), set.Replace(nil, ""),
		c.namespaces.Replace(nil, "")))
	for _, v := range views {
		c.add(t, v)
	}
	return c
}

// add has the watch show a pod or a reservation, which may replace one of that name.
func (c *cluster) add(t testing.TB, view any) {
	t.Helper()
	switch view := view.(type) {
	case *podView:
		next := *view
		if before, found := c.pods.Get(keyOf(view)); found && before.ResourceVersion == view.ResourceVersion {
			next.ResourceVersion += "0"
		}
		must.Succeed(t, c.pods.Update(&next))
	case *reservation:
		next := *view
		if before, found := c.reservations.Get(view.Namespace + "/" + view.Name); found &&
			before.ResourceVersion == view.ResourceVersion {
			next.ResourceVersion += "0"
		}
		must.Succeed(t, c.reservations.Update(&next))
	default:
		t.Fatalf("unexpected type %T", view)
	}
}

// remove has the watch show the deletion of a pod or a reservation, which may not have been shown
// before.
func (c *cluster) remove(t testing.TB, view any) {
	t.Helper()
	switch view := view.(type) {
	case *podView:
		if now := c.pod(keyOf(view)); now == nil || now.UID != view.UID {
			c.add(t, view)
		}
		must.Succeed(t, c.pods.Delete(c.pod(keyOf(view))))
	case *reservation:
		if _, found := c.reservations.Get(view.Namespace + "/" + view.Name); !found {
			c.add(t, view)
		}
		now, _ := c.reservations.Get(view.Namespace + "/" + view.Name)
		must.Succeed(t, c.reservations.Delete(now))
	default:
		t.Fatalf("unexpected type %T", view)
	}
}

// words collects what is reported of pods.
func words(to *[]string) reporter {
	return func(p *podView, reason, text string) { *to = append(*to, p.Name+" "+reason+": "+text) }
}

// runs returns the pod db/db-0 with a UID, which runs on node1 with the address 10.0.0.7.
func runs(uid types.UID, change ...func(*podView)) *podView {
	p := &podView{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: uid, ResourceVersion: "7"},
		Node: "node1", Window: lease.Window(time.Hour), Started: true, Addresses: "10.0.0.7", Recreated: true}
	for _, c := range change {
		c(p)
	}
	return p
}

// waits returns the pod db/db-0 with a UID, which a scheduler could not place on node1.
func waits(uid types.UID, change ...func(*podView)) *podView {
	return runs(uid, append([]func(*podView){func(p *podView) {
		p.Node, p.Started, p.Addresses = "", false, ""
		p.Pinned, p.Sent, p.Patience, p.Unschedulable = "node1", "node1", policy.DefaultPatience, true
	}}, change...)...)
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "db", Name: name}}
}

// forget has a cluster be one that has not listed the nodes yet.
func (c *cluster) forget() { c.nodes = kube.NewInformer(control.TrimNode, nil) }
