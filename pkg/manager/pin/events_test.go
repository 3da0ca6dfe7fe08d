package pin

import (
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestNotPossible(t *testing.T) {
	for reason, want := range map[string]string{
		"":                                    "",
		"Reserved: node1 has 10.0.0.7":        "",
		"NoReservation: no address waits":     "",
		"NotWanted: the pin mode is none":     "",
		"NodeCordoned: node1 is cordoned":     "not pinned: node1 is cordoned",
		"Attention: call this number":         "",
		"Unknown: it could not be looked: up": "not pinned: it could not be looked: up",
	} {
		check.Equal(t, notPossible(&podView{Reason: reason}), want, reason)
	}
}

// Each pod gets each Event once.
func TestEvents(t *testing.T) {
	clock := noon
	var reported []string
	p := lives("a", "node2", func(p *podView) { p.Reason = "NodeGone: there is none" })
	other := lives("b", "node2", func(p *podView) { p.Workload = "Deployment mirror" })
	e := &eventReconciler{cluster: clusterOf(t, nil, &clock, p, other, left("c", "node1", time.Minute)),
		report: words(&reported)}
	for range 2 {
		_, err := e.Reconcile(t.Context(), request("a"))
		must.Succeed(t, err)
	}
	_, err := e.Reconcile(t.Context(), request("gone"))
	must.Succeed(t, err)
	want := []string{"a PinNotPossible: not pinned: there is none",
		`a ReservationShared: Deployment registry and Deployment mirror use the reservation name "registry": the ` +
			`pods of each may get addresses of the other; give each workload a name of its own in the annotation ` +
			`leasehold.dev/reserve-as`,
		"a AddressChanged: started on node2, but node1 has kept 10.0.0.c: there is none"}
	check.Slices(t, reported, want, "reported")
}
