package pin

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waitingPod is pinned to node1 and was made some time before noon.
func waitingPod(age time.Duration, change func(*podView)) *podView {
	p := &podView{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon.Add(-age))}, Pinned: "node1"}
	change(p)
	return p
}

func TestNext(t *testing.T) {
	ourGate := func(p *podView) { p.Gated, p.Gates = true, 1 }
	twoGates := func(p *podView) { p.Gated, p.Gates = true, 2 }
	nominated := func(p *podView) { p.Nominated, p.NominatedByUs = "node1", true }
	failed := func(p *podView) { nominated(p); p.NotScheduled, p.Unschedulable = "Unschedulable", true }
	lastGate := func(ago time.Duration) podProgress { return podProgress{lastGate: noon.Add(-ago)} }
	tests := []struct {
		story       string
		pod         *podView
		podProgress podProgress
		own         bool
		step        step
		again       time.Duration
		why         string
	}{
		{"our own", waitingPod(0, ourGate), lastGate(0), true, nominate, 0, ""},
		{"the other replica's", waitingPod(0, ourGate), lastGate(0), false, leave, takeOverAfter, ""},
		{"the other replica is stopped", waitingPod(time.Second, ourGate), lastGate(takeOverAfter), false, nominate, 0,
			""},
		{"the other replica has nominated and stopped",
			waitingPod(time.Second, func(p *podView) { ourGate(p); nominated(p) }),
			lastGate(takeOverAfter), false, lift, 0, ""},
		{"too late for a nomination", waitingPod(3*time.Second, ourGate), lastGate(gateTimeout + 1), true, lift, 0, ""},
		{"this replica was away", waitingPod(time.Minute, ourGate), lastGate(0), false, leave, takeOverAfter, ""},
		{"the API server's clock is ahead", waitingPod(-time.Minute, ourGate), lastGate(0), true, nominate, 0, ""},
		{"the API server's clock is behind", waitingPod(time.Minute, ourGate), lastGate(0), true, nominate, 0, ""},
		{"a gate that the pod came with", waitingPod(0, func(p *podView) { ourGate(p); p.Pinned = "" }), lastGate(0),
			false, lift, 0, ""},
		{"somebody else holds it", waitingPod(time.Hour, twoGates), podProgress{}, true, leave, 0, ""},
		{"done, but the informer is late", waitingPod(time.Second, ourGate), podProgress{lastGate: noon, lifted: true},
			true, leave, 0, ""},

		{"nominated", waitingPod(time.Second, nominated), podProgress{nominated: noon.Add(-time.Second)}, true, leave,
			nominationTimeout - time.Second, ""},
		{"no scheduler for a minute", waitingPod(time.Minute, nominated),
			podProgress{nominated: noon.Add(-time.Minute)}, true, leave, nominationTimeout - time.Minute, ""},
		{"no scheduler for minutes", waitingPod(time.Hour, nominated),
			podProgress{nominated: noon.Add(-nominationTimeout)}, true, withdraw, 0, "TimedOut"},
		{"the scheduler says no", waitingPod(time.Second, failed), podProgress{nominated: noon, tried: noon}, true,
			leave, preemptionTime, ""},
		{"the scheduler says no, and time to mark preempted pods is over", waitingPod(time.Second, failed),
			podProgress{nominated: noon, tried: noon.Add(-preemptionTime)}, true, withdraw, 0, "Unschedulable"},
		{"the scheduler says no to one that preempts nobody",
			waitingPod(time.Second, func(p *podView) { failed(p); p.NeverPreempts = true }),
			podProgress{nominated: noon, tried: noon}, true, withdraw, 0, "Unschedulable"},
		{"the scheduler fails", waitingPod(time.Second, func(p *podView) {
			nominated(p)
			p.NotScheduled = "SchedulerError"
		}),
			podProgress{nominated: noon, tried: noon.Add(-preemptionTime)}, true, withdraw, 0, "SchedulerError"},
		{"nominated by the scheduler itself", waitingPod(time.Hour, func(p *podView) {
			failed(p)
			p.NominatedByUs = false
		}),
			podProgress{}, true, leave, 0, ""},
		{"nominated elsewhere", waitingPod(time.Minute, func(p *podView) {
			p.Nominated = "node2"
			p.Unschedulable = true
		}),
			podProgress{}, true, leave, 0, ""},
		{"bound", waitingPod(time.Minute, func(p *podView) { nominated(p); p.Node = "node1" }), podProgress{}, true,
			leave, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			step, again, why := next(tt.pod, tt.podProgress, tt.own, noon)
			if step != tt.step || again != tt.again || why != tt.why {
				t.Errorf("got %v, %v, %q; want %v, %v, %q", step, again, why, tt.step, tt.again, tt.why)
			}
		})
	}
}

func TestObserve(t *testing.T) {
	// The life of a pod that somebody else holds back, that is nominated, passed over, and then
	// nominated by the scheduler.
	var s podProgress
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	for i, p := range []*podView{
		{Pinned: "node1", Gated: true, Gates: 2},
		{Pinned: "node1", Gated: true, Gates: 1},
		{Pinned: "node1", Gated: true, Gates: 1, Nominated: "node1", NominatedByUs: true},
		{Pinned: "node1", Nominated: "node1", NominatedByUs: true},
		{Pinned: "node1", Nominated: "node1", NominatedByUs: true, NotScheduled: "Unschedulable"},
		{Pinned: "node1", NotScheduled: "Unschedulable"},
		{Pinned: "node1", Nominated: "node1", NotScheduled: "Unschedulable"},
	} {
		s = s.observe(p, at(i))
		want := []podProgress{
			{},
			{lastGate: at(1)},
			{lastGate: at(1)},
			{nominated: at(3)},
			{nominated: at(3), tried: at(4)},
			{},
			{},
		}[i]
		if s != want {
			t.Errorf("step %d: %+v, want %+v", i, s, want)
		}
	}
}
