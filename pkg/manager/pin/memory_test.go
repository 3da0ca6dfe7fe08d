package pin

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// reservationOfPod is a reservation of the pod db/db-0, which was published some minutes after
// noon.
func reservationOfPod(name, node, uid string, minutes int) *reservation {
	return &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("uid-" + name),
		ResourceVersion:   "1",
		CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute))}, Pod: "db-0", Node: node,
		PodUID: uid, Until: noon.Add(time.Hour + time.Duration(minutes)*time.Minute), Window: lease.Window(time.Hour)}
}

// TestForgedReservation publishes and deletes the reservations of a compromised node.
func TestForgedReservation(t *testing.T) {
	clock := noon
	ran := runs("u1", func(p *podView) { p.CreationTimestamp = metav1.NewTime(noon) })
	c := clusterOf(t, nil, &clock, ran)
	is := func(story, node string) {
		t.Helper()
		if on := c.home(); on != node {
			t.Errorf("%s: it is on %q, want %q", story, on, node)
		}
	}
	forged := reservationOfPod("forged", "node9", "u1", 5)
	c.remove(t, forged) // while the pod runs
	c.remove(t, ran)
	is("another node's reservation was deleted while it ran", "node1")
	c.add(t, forged)
	is("another node publishes it before its own", "node1")
	c.remove(t, forged)
	is("the other node's reservation is deleted", "node1")

	honest := reservationOfPod("honest", "node1", "u1", 1)
	for _, uid := range []string{"u1", "u9"} {
		for _, minutes := range []int{-5, 5} {
			forged := reservationOfPod("forged", "node9", uid, minutes)
			c.add(t, honest)
			c.add(t, forged)
			is("both have published it", "node1")
			clock = clock.Add(maxMemory + time.Minute)
			c.expire()
			is("both have published it, after a while", "node1")
			c.remove(t, forged)
			is("that of the other one is deleted", "node1")
			clock = noon
		}
	}
	c = clusterOf(t, nil, &clock, ran)
	c.remove(t, ran)
	c.remove(t, honest)
	c.remove(t, forged)
	is("its address was released, and that of another node deleted", "")
	for _, minutes := range []int{-5, 5} {
		forged := reservationOfPod("forged", "node9", "u9", minutes)
		c.add(t, forged)
		is("its address was released, and another node has published it", "")
		c.remove(t, forged)
	}
}
