package pin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// The reasons of the Events that the manager writes on pods.
const (
	// The pod was not pinned to the node that has its address, and why.
	reasonNotPossible = "PinNotPossible"
	// The pod was pinned to a node that did not accept it in time, and was deleted so that its
	// successor can run elsewhere.
	reasonReplaced = "PodReplaced"
	// The pod started on another node than the one that holds its address, and why.
	reasonChanged = "AddressChanged"
	// Pods of another workload use the pod's reservation name as well.
	reasonShared = "ReservationShared"
)

// A reporter writes a warning Event on a pod.
type reporter func(p *podView, reason, text string)

func newReporter(r recorder.EventRecorder) reporter {
	return func(p *podView, reason, text string) {
		pod := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
		control.Warn(r, pod, nil, reason, "Pin", text)
	}
}

// An eventReconciler writes an Event on a pod that is not pinned to the node with its former
// addresses, and on a pod that has started on another node than that. It runs in the leader.
type eventReconciler struct {
	cluster  *cluster
	report   reporter
	reported kube.Reported
}

// Reconcile writes the Events of a pod that is new, or was bound to a node. Each pod gets each of
// the Events at most once.
func (e *eventReconciler) Reconcile(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	p := e.cluster.pod(req.String())
	if p == nil {
		return reconcile.Result{}, nil
	}
	for _, event := range []struct{ reason, text string }{{reasonNotPossible, notPossible(p)},
		{reasonShared, e.cluster.sharedName(p)}, {reasonChanged, e.cluster.keptElsewhere(p)}} {
		if event.text != "" && e.reported.First(string(p.UID)+event.reason) {
			e.report(p, event.reason, event.text)
		}
	}
	return reconcile.Result{}, nil
}

// notPossible returns the text of the Event of a pod that is not pinned to the node with its former
// addresses. It returns "" if the pod is pinned, or if there is nothing to pin it to.
func notPossible(p *podView) string {
	reason, text, _ := strings.Cut(p.Reason, ": ")
	switch pinReason(reason) { // the reasons for which a node with addresses was not used
	case unknown, evicted, failedStarts, nodeGone, nodeExcluded, nodeNotReady, nodeCordoned, nodeTainted:
		return "not pinned: " + text
	}
	return ""
}

// keptElsewhere returns the text of the Event of a pod that runs on another node than one that has
// kept an address for it. It returns "" for other pods. The node ends its hold soon, because the
// pod runs elsewhere, maybe before a replica that begins to lead gets here: but the pod shows to
// which node it was pinned.
func (c *cluster) keptElsewhere(p *podView) string {
	if p.Node == "" || p.Node == p.Sent {
		return ""
	}
	var homes []pinTarget
	if p.For != "" {
		homes = slices.Collect(c.targets(control.NameKey(p.Namespace, p.For), nil))
	} else {
		isOwn := func(r *control.Reservation) bool { return r.PodUID == string(p.UID) }
		home := choose(slices.DeleteFunc(c.reservations.OfPod(keyOf(p)), isOwn), c.lastEnded(keyOf(p)), c.now())
		if home.Addresses != "" {
			homes = append(homes, home)
		}
	}
	_, why, _ := strings.Cut(p.Reason, ": ")
	isHere := func(t pinTarget) bool { return t.Node == p.Node }
	switch {
	case len(homes) == 0 && p.Sent != "" && p.For == "": // another pod of a name may have what was kept
		return fmt.Sprintf("started on %s, but was pinned to %s: %s", p.Node, p.Sent, why)
	case len(homes) == 0 || slices.ContainsFunc(homes, isHere):
		return ""
	}
	home := homes[0]
	return fmt.Sprintf("started on %s, but %s has kept %s: %s", p.Node, home.Node,
		cmp.Or(home.Addresses, "addresses for it"), why)
}

// follow enqueues the pods that are new, or were bound to a node.
func (e *eventReconciler) follow(_ context.Context, queue control.Queue) {
	e.cluster.pods.Handle(kube.Handler[*podView]{
		Added: func(p *podView) {
			if e.cluster.now().Sub(p.CreationTimestamp.Time) < control.MaxReportAge {
				queue.Add(requestOf(p))
			}
		},
		Updated: func(before, p *podView) {
			if before.Node == "" && p.Node != "" {
				queue.Add(requestOf(p))
			}
		},
	})
}
