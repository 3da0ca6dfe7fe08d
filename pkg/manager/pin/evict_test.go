package pin

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPendingPodExpired(t *testing.T) {
	// A pod that has been unschedulable for as long as the timeout, and whose node looks well.
	waits := func(change ...func(*pendingPod)) pendingPod {
		s := pendingPod{
			pod:  &podView{Pinned: "node1", UnschedulableWhy: "0/3 nodes are available"},
			node: node("node1"), lease: []*reservation{{Node: "node1"}}, timeout: time.Minute,
			since: noon.Add(-time.Minute),
		}
		for _, c := range change {
			c(&s)
		}
		return s
	}
	pod := func(change func(*podView)) func(*pendingPod) { return func(s *pendingPod) { change(s.pod) } }
	is := func(change func(*corev1.Node)) func(*pendingPod) { return func(s *pendingPod) { change(s.node) } }
	noLease := func(s *pendingPod) { s.lease = nil }
	since := func(ago time.Duration) func(*pendingPod) { return func(s *pendingPod) { s.since = noon.Add(-ago) } }

	tests := []struct {
		story      string
		pendingPod pendingPod
		why        pinReason
		text       string
		again      time.Duration
	}{
		{"no room", waits(), "NodeFull", "0/3 nodes are available", 0},
		{"not yet", waits(since(20 * time.Second)), "", "", 40 * time.Second},
		{"the node is gone", waits(func(s *pendingPod) { s.node = nil }), nodeGone, "node1 is gone", 0},
		{"the node is gone, not yet", waits(func(s *pendingPod) { s.node = nil }, since(time.Second)), "", "",
			59 * time.Second},
		{"dead", waits(is(notReady)), nodeNotReady, "node1 is not Ready", 0},
		{"cordoned", waits(is(cordoned)), nodeCordoned, "node1 is cordoned", 0},
		{"tainted", waits(is(tainted("NoSchedule"))), nodeTainted, "node1 has the taint team=b:NoSchedule", 0},
		{"tainted, but that is not it", waits(is(tainted("NoSchedule")), pod(func(p *podView) {
			p.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		})), "NodeFull", "0/3 nodes are available", 0},
		{"the window has ended", waits(noLease), noReservation, "its address on node1 is no longer reserved", 0},
		{"the window has ended before the timeout", waits(noLease, since(publishLag)), noReservation,
			"its address on node1 is no longer reserved", 0},
		{"nothing is reserved on a node that a user names, which does not exist", waits(noLease,
			func(s *pendingPod) { s.node = nil }), noReservation, "its address on node1 is no longer reserved", 0},
		{"nothing is reserved on a node that a user names, which has a taint", waits(noLease,
			is(tainted("NoSchedule"))), noReservation, "its address on node1 is no longer reserved", 0},
		{"it may not be published yet", waits(noLease, since(time.Second)), "", "", publishLag - time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			why, text, again := tt.pendingPod.expired(noon)
			if why != tt.why || text != tt.text || again != tt.again {
				t.Errorf("got %q (%s), %v; want %q (%s), %v", why, text, again, tt.why, tt.text, tt.again)
			}
		})
	}
}

func TestAwaitsNode(t *testing.T) {
	for story, change := range map[string]func(*podView){
		"":                                     func(*podView) {},
		"schedulable, as far as anybody knows": func(p *podView) { p.Unschedulable = false },
		"bound":                                func(p *podView) { p.Node = "node1" },
		"not required":                         func(p *podView) { p.Required = false },
		"held back by somebody":                func(p *podView) { p.Gates = 1 },
		"nobody would make it again":           func(p *podView) { p.Controlled = false },
		"on its way out":                       func(p *podView) { p.DeletionTimestamp = &metav1.Time{Time: noon} },
	} {
		p := &podView{Required: true, Pinned: "node1", Controlled: true, Unschedulable: true}
		change(p)
		if got := p.awaitsNode(); got != (story == "") {
			t.Errorf("%s: %t", story, got)
		}
	}
}
