package pin

import (
	"errors"
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
	nominated := func(p *podView) { p.Nominated = "node1" }
	alone := func(ago time.Duration) sight { return sight{alone: noon.Add(-ago)} }
	tests := []struct {
		story string
		pod   *podView
		sight sight
		own   bool
		step  step
		again time.Duration
		why   string
	}{
		{"our own", waitingPod(0, ourGate), alone(0), true, nominate, 0, ""},
		{"the other replica's", waitingPod(0, ourGate), alone(0), false, leave, takeOver, ""},
		{"the other replica is stopped", waitingPod(time.Second, ourGate), alone(takeOver), false, nominate, 0, ""},
		{"the other replica has nominated and stopped", waitingPod(time.Second, func(p *podView) { ourGate(p); nominated(p) }),
			alone(takeOver), false, lift, 0, ""},
		{"too late for a nomination", waitingPod(3*time.Second, ourGate), alone(gateLife + 1), true, lift, 0, ""},
		{"this replica was away", waitingPod(time.Minute, ourGate), alone(0), false, lift, 0, ""},
		{"clocks differ", waitingPod(-time.Minute, ourGate), alone(0), true, nominate, 0, ""},
		{"clocks differ a little", waitingPod(clockSkew+time.Second, ourGate), alone(0), true, nominate, 0, ""},
		{"a gate that the pod came with", waitingPod(0, func(p *podView) { ourGate(p); p.Pinned = "" }), alone(0), false, lift, 0, ""},
		{"somebody else holds it", waitingPod(time.Hour, twoGates), sight{held: true}, true, leave, 0, ""},
		{"somebody else has held it for an hour", waitingPod(time.Hour, ourGate), sight{held: true, alone: noon}, false, leave, takeOver, ""},
		{"and it was ours then", waitingPod(time.Hour, ourGate), sight{held: true, alone: noon.Add(-takeOver)}, false, nominate, 0, ""},
		{"done, but the informer is late", waitingPod(time.Second, ourGate), sight{alone: noon, lifted: true}, true, leave, 0, ""},

		{"nominated", waitingPod(time.Second, nominated), sight{nominated: noon.Add(-time.Second)}, true, leave, nominationLife - time.Second, ""},
		{"nothing came of it", waitingPod(time.Minute, nominated), sight{nominated: noon.Add(-nominationLife)}, true, withdraw, 0, "TimedOut"},
		{"the scheduler says no", waitingPod(time.Second, func(p *podView) { nominated(p); p.Unschedulable = noon }), sight{nominated: noon}, true,
			withdraw, 0, "Unschedulable"},
		{"nominated by the scheduler itself, after ours", waitingPod(time.Minute, func(p *podView) { nominated(p); p.Unschedulable = noon }),
			sight{nominated: noon, over: true}, true, leave, 0, ""},
		{"nominated elsewhere", waitingPod(time.Minute, func(p *podView) { p.Nominated = "node2"; p.Unschedulable = noon }), sight{}, true, leave, 0, ""},
		{"bound", waitingPod(time.Minute, func(p *podView) { nominated(p); p.Node = "node1" }), sight{}, true, leave, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			step, again, why := next(tt.pod, tt.sight, tt.own, noon)
			if step != tt.step || again != tt.again || why != tt.why {
				t.Errorf("got %v, %v, %q; want %v, %v, %q", step, again, why, tt.step, tt.again, tt.why)
			}
		})
	}
}

func TestLook(t *testing.T) {
	// The life of a pod that somebody else holds back, that is nominated, passed over, and then nominated by the scheduler.
	var s sight
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	for i, p := range []*podView{
		{Pinned: "node1", Gated: true, Gates: 2},
		{Pinned: "node1", Gated: true, Gates: 1},
		{Pinned: "node1", Gated: true, Gates: 1, Nominated: "node1"},
		{Pinned: "node1", Nominated: "node1"},
		{Pinned: "node1", Nominated: "node1", Unschedulable: noon},
		{Pinned: "node1", Unschedulable: noon},
		{Pinned: "node1", Nominated: "node1", Unschedulable: noon},
	} {
		s = s.look(p, at(i))
		want := []sight{
			{held: true},
			{held: true, alone: at(1)},
			{held: true, alone: at(1)},
			{held: true, nominated: at(3)},
			{held: true, nominated: at(3)},
			{held: true, over: true},
			{held: true, over: true, nominated: at(6)},
		}[i]
		if s != want {
			t.Errorf("step %d: %+v, want %+v", i, s, want)
		}
	}
}

func TestBacklog(t *testing.T) {
	b := newBacklog()
	b.pace = 100 * time.Millisecond // 16 workers do 160 pods in the second that the budget is
	if !b.Room(159, noon) || b.Room(160, noon) {
		t.Error("room for 159 and one more, and for no other")
	}
	for _, key := range []string{"a/1", "a/2"} {
		b.Made(key, noon)
	}
	if b.Room(158, noon) {
		t.Error("pods that were admitted count before they are seen")
	}
	if !b.Seen("a/1", noon) || b.Seen("a/3", noon) {
		t.Error("a/1 was admitted here, a/3 was not")
	}
	if b.Room(158, noon) != true {
		t.Error("a pod that is seen counts once")
	}
	if !b.Room(159, noon.Add(gateLife+1)) {
		t.Error("a pod that never came counts for ever")
	}
	if b.Seen("a/1", noon.Add(ownLife+1)) {
		t.Error("a/1 of a later day is not the one that was admitted here")
	}
	for range 100 {
		b.Lifted(10*time.Millisecond, nil, noon)
	}
	if !b.Room(1400, noon) {
		t.Errorf("the pace is still %v", b.pace)
	}
	b.Lifted(0, errors.New("the API server is away"), noon)
	if b.Room(0, noon) || !b.Room(0, noon.Add(gateLife)) {
		t.Error("no gate is made for a while after one could not be lifted")
	}
}
