package pin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/once"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// The reasons of the Events that the manager writes on pods.
const (
	// The pod's address is on a node that it was not pinned to, and why; or its gate cannot be
	// lifted, because a policy or a webhook rejects that.
	reasonNotPossible = "PinNotPossible"
	// The pod's nomination was taken back, and why. The scheduler may take any node.
	reasonWithdrawn = "PinWithdrawn"
	// The pod was required to wait for its node, and was deleted so that its successor can run
	// elsewhere.
	reasonEvicted = "PodEvicted"
	// The pod started on another node than the one that holds its address, and why.
	reasonChanged = "AddressChanged"
	// Pods of another workload use the pod's reservation name as well.
	reasonShared = "ReservationShared"
)

// maxReportAge is the age up to which a pod gets an Event about its creation. Older pods get none,
// so that a new leader does not repeat the Events of the former leader.
const maxReportAge = 30 * time.Second

// newReporter returns a function that writes a warning Event on a pod.
func newReporter(r recorder.EventRecorder) func(p *podView, reason, text string) {
	return func(p *podView, reason, text string) {
		pod := bare(p)
		pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		r.Eventf(pod, nil, corev1.EventTypeWarning, reason, "Pin", "%s", text)
	}
}

// An explainer is the controller that writes an Event on a pod that is not pinned to the node with
// its former addresses, and on a pod that has started on another node than that. It runs in the
// leader.
type explainer struct {
	cluster  *cluster
	report   func(p *podView, reason, text string)
	reported once.Set
}

// Reconcile writes the Events of a pod that is new, or was bound to a node. Each pod gets each of
// the Events at most once.
func (e *explainer) Reconcile(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	p := e.cluster.pod(req.String())
	if p == nil {
		return reconcile.Result{}, nil
	}
	now := e.cluster.now()
	if text := notPossible(p); text != "" && e.reported.First(string(p.UID)+reasonNotPossible, now) {
		e.report(p, reasonNotPossible, text)
	}
	if text := e.cluster.shared(p); text != "" && e.reported.First(string(p.UID)+reasonShared, now) {
		e.report(p, reasonShared, text)
	}
	if p.Node == "" {
		return reconcile.Result{}, nil
	}
	text := ""
	if p.For == "" {
		text = changed(p, e.cluster.reservationsOf(req.String()), e.cluster.lastEnded(req.String()), now)
	} else if homes, _ := e.cluster.targets(p.Namespace, p.For, req.String()); len(homes) > 0 &&
		!slices.ContainsFunc(homes, func(home pinTarget) bool { return home.Node == p.Node }) {
		text = keptElsewhere(p, homes[0])
	}
	if text != "" && e.reported.First(string(p.UID)+reasonChanged, now) {
		e.report(p, reasonChanged, text)
	}
	return reconcile.Result{}, nil
}

// notPossible returns the text of the Event of a pod that is not pinned to the node with its former
// addresses. It returns "" if the pod is pinned, or if there is nothing to pin it to.
func notPossible(p *podView) string {
	reason, text, _ := strings.Cut(p.Reason, ": ")
	switch pinReason(reason) { // the reasons for which a node with addresses was not used
	case unknown, abandoned, evicted, failedStarts, nodeGone, nodeExcluded, nodeNotReady, nodeCordoned, nodeTainted:
		return "not pinned: " + text
	}
	return ""
}

// changed returns the text of the Event of a pod that runs on another node than the one that has
// its former addresses. It returns "" for other pods. all are the reservations with the name of the
// pod, and last is the remembered instance of that name.
func changed(p *podView, all []*reservation, last instance, now time.Time) string {
	var before []*reservation
	for _, r := range all {
		if r.PodUID != string(p.UID) {
			before = append(before, r)
		}
	}
	home, found := choose(before, last, now)
	if !found || home.Node == p.Node {
		return ""
	}
	return keptElsewhere(p, home)
}

// keptElsewhere returns the text of the Event of a pod that runs on another node than home.
func keptElsewhere(p *podView, home pinTarget) string {
	if home.Addresses == "" {
		return ""
	}
	_, why, _ := strings.Cut(p.Reason, ": ")
	if p.Pinned == home.Node {
		why = "it did not pass the scheduler's filters there"
		if modeIn(p.Reason) == policy.PinPrefer {
			why += ", or other nodes had a higher score"
		}
	}
	return fmt.Sprintf("started on %s, but %s has kept %s: %s", p.Node, home.Node, home.Addresses, why)
}

func (e *explainer) setup(mgr manager.Manager) error {
	c, err := controller.New("explain", mgr, controller.Options{Reconciler: e})
	if err != nil {
		return err
	}
	return c.Watch(source.Func(func(_ context.Context,
		queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		e.cluster.pods.Handle(e.handler(queue))
		return nil
	}))
}

// handler returns the handler that enqueues the pods that are new, or were bound to a node.
func (e *explainer) handler(queue workqueue.TypedInterface[reconcile.Request]) informer.Handler[*podView] {
	return informer.Handler[*podView]{
		Added: func(p *podView) {
			if e.cluster.now().Sub(p.CreationTimestamp.Time) < maxReportAge {
				queue.Add(requestOf(p))
			}
		},
		Updated: func(before, p *podView) {
			if before.Node == "" && p.Node != "" {
				queue.Add(requestOf(p))
			}
		},
	}
}
