package pin

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func bound(node, version string) *reservation {
	return &reservation{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}, Node: node, Bound: true}
}

// held waits for a ten-minute window that ends some time after noon.
func held(node, version string, left time.Duration) *reservation {
	return &reservation{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}, Node: node,
		Until: noon.Add(left), Window: lease.Window(10 * time.Minute)}
}

func TestChoose(t *testing.T) {
	forever := &reservation{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}, Node: "node3", Window: lease.Forever}
	releasing := bound("node2", "8")
	releasing.Releasing = true
	ran := func(node string, ago time.Duration) instance {
		return instance{Node: node, PodUID: "u1", Started: true, Ended: noon.Add(-ago), Until: noon.Add(time.Minute)}
	}
	of := func(uid string, r *reservation) *reservation {
		r.PodUID = uid
		return r
	}
	unknownWindow := func(r *reservation) *reservation {
		r.Window = 0
		return r
	}
	on := func(node string, r *reservation) *reservation {
		other := *r
		other.Node = node
		return &other
	}
	written := func(ago time.Duration, r *reservation) *reservation {
		r.Written = noon.Add(-ago)
		return r
	}
	created := func(minute int, r *reservation) *reservation {
		r.CreationTimestamp = metav1.NewTime(noon.Add(time.Duration(minute) * time.Minute))
		return r
	}
	// The pod has run on node1 from noon on; node9 is compromised.
	onNode1 := instance{Node: "node1", PodUID: "u1", Started: true, Created: noon, Ended: noon.Add(-time.Hour)}
	type all = []*reservation
	tests := []struct {
		story string
		all   all
		last  instance
		want  string
	}{
		{"nothing", nil, instance{}, ""},
		{"bound", all{bound("node1", "1")}, instance{}, "node1"},
		{"bound on a node that died, and held since", all{bound("node1", "1"), held("node2", "9", time.Minute)},
			instance{}, "node2"},
		{"bound since", all{held("node1", "1", time.Minute), bound("node2", "9")}, instance{}, "node2"},
		{"bound since, before the hold was written",
			all{written(55*time.Second, held("node1", "9", 9*time.Minute)),
				written(58*time.Second, bound("node2", "8"))},
			instance{}, "node2"},
		{"bound since, before the hold without an end was written",
			all{written(55*time.Second, forever), written(58*time.Second, bound("node2", "8"))}, instance{}, "node2"},
		{"bound on a node that died, and held since, both with their times",
			all{written(time.Hour, bound("node1", "1")), written(55*time.Second, held("node2", "9", 9*time.Minute))},
			instance{}, "node2"},
		{"the pod's last instance, whose predecessor's end was reported late",
			all{held("node1", "9", time.Minute), of("u1", bound("node2", "1"))},
			instance{Node: "node2", PodUID: "u1", Ended: noon.Add(-time.Hour)}, "node2"},
		{"the later write", all{bound("node1", "10"), bound("node2", "9")}, instance{}, "node1"},
		{"the later release", all{held("node1", "1", 5*time.Minute), held("node2", "2", 4*time.Minute)}, instance{},
			"node1"},
		{"one that has no end, by its write", all{held("node1", "1", 5*time.Minute), forever}, instance{}, "node3"},
		{"one whose release is not known, by its write",
			all{unknownWindow(held("node1", "1", 4*time.Minute)), held("node2", "2", 5*time.Minute)},
			instance{}, "node2"},
		{"what has lapsed does not count",
			all{held("node1", "1", -control.ClockLag-time.Second), held("node2", "1", time.Second)},
			instance{}, "node2"},
		{"only what has lapsed", all{held("node1", "1", -control.ClockLag)}, instance{}, ""},
		{"the clock of the node is behind", all{held("node1", "1", time.Second-control.ClockLag)}, instance{},
			"node1"},
		{"what is given up does not count", all{held("node1", "1", time.Minute), releasing}, instance{}, "node1"},

		{"seen, not published", nil, ran("node1", time.Second), "node1"},
		{"seen too long ago for its window", nil, instance{Node: "node1", Started: true, Ended: noon, Until: noon}, ""},
		{"seen so long ago that it would be published", nil, ran("node1", publishLag), ""},
		{"seen, and given up since", all{on("node1", releasing)}, ran("node1", time.Second), ""},
		{"seen, and its reservation is gone since", nil,
			instance{Node: "node1", PodUID: "u1", Lost: podOnNode{"u1", "node1"}, Started: true, Ended: noon,
				Until: noon.Add(time.Minute)}, ""},
		{"seen, and its predecessor's reservation is gone since", nil,
			instance{Node: "node1", PodUID: "u1", Lost: podOnNode{"u0", "node1"}, Started: true, Ended: noon,
				Until: noon.Add(time.Minute)},
			"node1"},
		{"seen, and another node's is given up", all{releasing}, ran("node1", time.Second), "node1"},
		{"seen where it is published", all{held("node1", "1", time.Minute)}, ran("node1", time.Second), "node1"},
		{"it has moved, which is not published yet", all{held("node1", "1", time.Minute)}, ran("node2", time.Second),
			"node2"},
		{"it has moved long ago, which would be published", all{held("node1", "1", time.Minute)},
			ran("node2", time.Minute), "node1"},
		{"it did not start where it went", all{held("node1", "1", time.Minute)},
			instance{Node: "node2", Ended: noon, Until: noon.Add(time.Minute)}, "node1"},

		{"another node claims the same pod, and only that one", all{of("u1", bound("node9", "9"))}, onNode1, ""},
		{"another node claims the same pod", all{of("u1", held("node1", "1", time.Minute)), of("u1",
			held("node9", "9", 9*time.Minute))}, onNode1, "node1"},
		{"another node claims a later pod that never was",
			all{of("u1", held("node1", "1", time.Minute)), of("u9", held("node9", "9", 9*time.Minute))}, onNode1,
			"node1"},
		{"another node claims a later pod, and the pod's own node nothing any more",
			all{created(5, of("u9", held("node9", "9", 9*time.Minute)))}, onNode1, ""},
		{"another node had the pod before", all{created(-5, of("u0", held("node2", "9", 9*time.Minute)))}, onNode1,
			"node2"},
		{"no manager has seen the pod that ran last, and left the later hold",
			all{created(0, of("u1", held("node1", "1", time.Minute))),
				created(5, of("u2", held("node2", "2", 9*time.Minute)))}, instance{}, "node2"},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			p, found := choose(tt.all, tt.last, noon)
			if p.Node != tt.want || found != (tt.want != "") {
				t.Errorf("got %q (%t), want %q", p.Node, found, tt.want)
			}
		})
	}
}

func TestInstanceAfter(t *testing.T) {
	before := instance{Node: "node1", PodUID: "u0", Started: true, Ended: noon.Add(-time.Minute),
		Until: noon.Add(time.Minute), Failures: 1}
	pod := func(change func(*podView)) *podView {
		p := &podView{ObjectMeta: metav1.ObjectMeta{UID: "u1"}, Node: "node1", BoundAt: noon.Add(-time.Hour),
			Window: lease.Window(time.Hour), Started: true, Addresses: "10.0.0.7"}
		change(p)
		return p
	}
	before.Lost = podOnNode{UID: "u9"}
	ended := instance{Lost: podOnNode{UID: "u9"}, Node: "node1", PodUID: "u1", Addresses: "10.0.0.7",
		Started: true, Ended: noon,
		Until: noon.Add(maxMemory)}
	with := func(change func(*instance)) instance {
		t := ended
		change(&t)
		return t
	}
	tests := []struct {
		story  string
		before instance
		pod    *podView
		want   instance
	}{
		{"it ran", before, pod(func(*podView) {}), ended},
		{"a short window", before, pod(func(p *podView) { p.Window = lease.Window(time.Minute) }),
			with(func(t *instance) { t.Until = noon.Add(time.Minute) })},
		{"forever", before, pod(func(p *podView) { p.Window = lease.Forever }), ended},
		{"evicted", before, pod(func(p *podView) { p.Evicted = true }), with(func(t *instance) { t.Evicted = true })},
		{"it never ran", before, pod(func(p *podView) { p.Node = "" }), before},
		{"no sandbox in all that time", instance{Lost: podOnNode{UID: "u9"}}, pod(func(p *podView) {
			p.Started, p.Addresses = false, ""
		}),
			with(func(t *instance) { t.Started, t.Addresses, t.Failures = false, "", 1 })},
		{"again", before, pod(func(p *podView) { p.Started, p.Addresses = false, "" }),
			with(func(t *instance) { t.Started, t.Addresses, t.Failures = false, "", 2 })},
		{"refused by the kubelet", before,
			pod(func(p *podView) { p.Started, p.Addresses, p.Failed, p.BoundAt = false, "", true, noon }),
			with(func(t *instance) { t.Started, t.Addresses, t.Failures = false, "", 2 })},
		{"on another node it counts from one", before,
			pod(func(p *podView) { p.Node, p.Started, p.Addresses = "node2", false, "" }),
			with(func(t *instance) { t.Node, t.Started, t.Addresses, t.Failures = "node2", false, "", 1 })},
		{"it lived for a second, too short to start", before,
			pod(func(p *podView) { p.Started, p.Addresses, p.BoundAt = false, "", noon.Add(-time.Second) }),
			with(func(t *instance) { t.Started, t.Addresses = false, "" })},
		{"long enough to start", instance{Lost: podOnNode{UID: "u9"}},
			pod(func(p *podView) { p.Started, p.Addresses, p.BoundAt = false, "", noon.Add(-startGrace) }),
			with(func(t *instance) { t.Started, t.Addresses, t.Failures = false, "", 1 })},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			if got := tt.before.after(tt.pod, noon); got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}
