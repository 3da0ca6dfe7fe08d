package pin

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/once"
)

// A podEvent is an event of the watch: an addition if before is nil, a deletion if after is.
type podEvent struct{ before, after *podView }

// enqueues reports whether a handler enqueues the pod of an event.
func enqueues(t *testing.T, e podEvent,
	handler func(workqueue.TypedInterface[reconcile.Request]) informer.Handler[*podView]) bool {
	t.Helper()
	queue := workqueue.NewTyped[reconcile.Request]()
	defer queue.ShutDown()
	h := handler(queue)
	switch {
	case e.before == nil:
		h.Added(e.after)
	case e.after == nil && h.Deleted != nil:
		h.Deleted(e.before)
	case e.after != nil:
		h.Updated(e.before, e.after)
	}
	if queue.Len() == 0 {
		return false
	}
	if got, _ := queue.Get(); got != request("db-0") || queue.Len() > 0 {
		t.Errorf("%s is enqueued, and %d others", got, queue.Len())
	}
	return true
}

func TestEventsOfTheEvictor(t *testing.T) {
	waits := named("db-0", "u1", func(p *podView) { p.Required, p.Controlled, p.Unschedulable = true, true, true })
	runs := named("db-0", "u1", func(p *podView) { p.Required, p.Controlled, p.Node = true, true, "node1" })
	for name, c := range map[string]struct {
		podEvent
		want bool
	}{
		"a pod that waits":        {podEvent{nil, waits}, true},
		"a pod that runs":         {podEvent{nil, runs}, false},
		"it begins to wait":       {podEvent{runs, waits}, true},
		"it still waits":          {podEvent{waits, waits}, true},
		"it waits no longer":      {podEvent{waits, runs}, true}, // its wait is forgotten
		"it still runs":           {podEvent{runs, runs}, false},
		"it is deleted, it waits": {podEvent{waits, nil}, true},
		"it is deleted, it runs":  {podEvent{runs, nil}, false},
	} {
		if got := enqueues(t, c.podEvent, evictHandler); got != c.want {
			t.Errorf("%s: enqueued: %v, want %v", name, got, c.want)
		}
	}
}

func TestEventsOfTheExplainer(t *testing.T) {
	clock := noon
	e := &explainer{cluster: clusterOf(t, nil, &clock), reported: once.Set{Life: time.Hour}}
	created := func(ago time.Duration, node string) *podView {
		return named("db-0", "u1", func(p *podView) {
			p.CreationTimestamp, p.Node = metav1.NewTime(noon.Add(-ago)), node
		})
	}
	for name, c := range map[string]struct {
		podEvent
		want bool
	}{
		"a new pod":                      {podEvent{nil, created(0, "")}, true},
		"a pod that is almost too old":   {podEvent{nil, created(maxReportAge-1, "node1")}, true},
		"a pod that a new leader learns": {podEvent{nil, created(maxReportAge, "")}, false},
		"it is bound":                    {podEvent{created(time.Hour, ""), created(time.Hour, "node1")}, true},
		"it was bound before":            {podEvent{created(0, "node1"), created(0, "node1")}, false},
		"another change":                 {podEvent{created(0, ""), created(0, "")}, false},
		"it is deleted":                  {podEvent{created(0, ""), nil}, false},
	} {
		if got := enqueues(t, c.podEvent, e.handler); got != c.want {
			t.Errorf("%s: enqueued: %v, want %v", name, got, c.want)
		}
	}
}

func TestEventsOfTheNominator(t *testing.T) {
	gated := named("db-0", "u1", func(p *podView) { p.Gated, p.Gates = true, 1 })
	nominated := named("db-0", "u1", func(p *podView) { p.Nominated, p.NominatedByUs = "node1", true })
	bound := named("db-0", "u1", func(p *podView) { p.Node = "node1" })
	plain := named("db-0", "u1")
	next := named("db-0", "u2")
	for name, c := range map[string]struct {
		podEvent
		probe      bool // the pod was chosen for a probe
		other      bool // another replica has admitted it
		enqueued   bool
		remembered bool // its progress
		gate       bool // it has a place among the gates
	}{
		"a pod with a gate": {podEvent: podEvent{nil, gated}, enqueued: true, remembered: true,
			gate: true},
		"of another replica": {podEvent: podEvent{nil, gated}, other: true, enqueued: true,
			remembered: true},
		"a pod with a nomination": {podEvent: podEvent{gated, nominated}, enqueued: true, remembered: true},
		"without either":          {podEvent: podEvent{nominated, plain}, remembered: true},
		"it is probed": {podEvent: podEvent{nil, plain}, probe: true, enqueued: true,
			remembered: true},
		"it is bound":                    {podEvent: podEvent{nominated, bound}},
		"its successor has no gate":      {podEvent: podEvent{gated, next}, enqueued: true, gate: true},
		"its successor, other replica":   {podEvent: podEvent{gated, next}, other: true},
		"a watch does not show it again": {podEvent: podEvent{gated, nil}, enqueued: true, gate: true},
		"another replica's is deleted":   {podEvent: podEvent{gated, nil}, other: true},
		"it is deleted without a gate":   {podEvent: podEvent{plain, nil}},
	} {
		n, _, _ := nominates(t)
		n.observe(gated, noon)
		switch {
		case c.other, c.before == plain || c.before == nominated:
			n.gates.Cancel("db/db-0")
		}
		if c.probe {
			n.gates.Cancel("db/db-0")
			n.gates.probe = "db/db-0"
		}
		if got := enqueues(t, c.podEvent, n.handler); got != c.enqueued {
			t.Errorf("%s: enqueued: %v, want %v", name, got, c.enqueued)
		}
		if _, got := n.progress["u1"]; got != c.remembered {
			t.Errorf("%s: its progress is remembered: %v, want %v", name, got, c.remembered)
		}
		if got := n.gates.Own("db/db-0"); got != c.gate {
			t.Errorf("%s: it has a gate: %v, want %v", name, got, c.gate)
		}
	}
}
