package pin

import (
	"slices"
	"testing"
	"time"

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
		if got := notPossible(&podView{Reason: reason}); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}

func TestKeptElsewhere(t *testing.T) {
	home := held("node1", "1", time.Minute)
	home.Namespace, home.Name, home.Pod, home.PodUID, home.Addresses = "db", "home", "db-0", "u0", "10.0.0.7"
	own := reservationOfPod("own", "node2", "u1", 0)
	own.Bound, own.ResourceVersion = true, "2"
	former := reservationOfPod("former", "node2", "u-1", -120)
	lapsed := reservationOfPod("lapsed", "node1", "u0", -120)
	on := func(node, reason string) *podView {
		return runs("u1", func(p *podView) { p.Node, p.Reason = node, reason })
	}
	const cordoned = "NodeCordoned: node1 is cordoned"
	for name, tt := range map[string]struct {
		pod   *podView
		known []any
		want  string
	}{
		"on its node":                      {on("node1", ""), []any{home}, ""},
		"without a node":                   {waits("u1"), []any{home}, ""},
		"nothing was kept":                 {on("node2", ""), nil, ""},
		"nothing is kept any more":         {on("node2", cordoned), []any{lapsed}, ""},
		"its own new address is published": {on("node2", ""), []any{own}, ""},
		"an earlier node has another address": {on("node2", cordoned), []any{home, former},
			"started on node2, but node1 has kept 10.0.0.7: node1 is cordoned"},
		"not pinned": {on("node2", cordoned), []any{home, own},
			"started on node2, but node1 has kept 10.0.0.7: node1 is cordoned"},
		"seen on another node a moment ago": {on("node2", cordoned), []any{ended{runs("u0")}},
			"started on node2, but node1 has kept 10.0.0.7: node1 is cordoned"},
		"seen on this node a moment ago": {on("node1", cordoned), []any{ended{runs("u0")}}, ""},
		"preferred without effect": {on("node2", "Reserved: prefer node1, which has 10.0.0.7"), []any{home},
			"started on node2, but node1 has kept 10.0.0.7: prefer node1, which has 10.0.0.7"},
		"preferred, and the hold has ended meanwhile": {runs("u1", func(p *podView) {
			p.Node, p.Sent, p.Reason = "node2", "node1", "Reserved: prefer node1, which has 10.0.0.7"
		}), nil, "started on node2, but was pinned to node1: prefer node1, which has 10.0.0.7"},
		"an address for its reservation name": {lives("b", "node2", func(p *podView) { p.Reason = cordoned }),
			[]any{left("a", "node1", time.Minute)},
			"started on node2, but node1 has kept 10.0.0.a: node1 is cordoned"},
		"addresses for its reservation name": {lives("b", "node2", func(p *podView) { p.Reason = cordoned }),
			[]any{left("a", "node1", time.Minute), left("c", "node1", time.Minute)},
			"started on node2, but node1 has kept 10.0.0.a,10.0.0.c: node1 is cordoned"},
		"on a node with an address for its reservation name": {lives("b", "node1"),
			[]any{left("a", "node1", time.Minute)}, ""},
	} {
		clock := noon
		c := clusterOf(t, nil, &clock)
		for _, known := range tt.known {
			if e, is := known.(ended); is {
				c.remove(t, e.podView)
			} else {
				c.add(t, known)
			}
		}
		if got := c.keptElsewhere(tt.pod); got != tt.want {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, tt.want)
		}
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
	if !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
}
