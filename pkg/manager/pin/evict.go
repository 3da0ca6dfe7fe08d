package pin

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
)

// markDelay is the time between the mark on a reservation and the eviction of its pod. In this time
// the mark reaches every replica.
const markDelay = time.Second

// An evictor deletes pods in the mode require that their node does not take, because the affinity
// of a pending pod cannot be changed (docs/facts.md, "The affinity of a pending pod cannot be
// relaxed"). The controllers of these pods create new ones, which are not pinned to the same
// reservation again. The evictor runs in the leader.
type evictor struct {
	cluster    *cluster
	client     client.Client
	timeout    time.Duration
	collectors *collectors
	report     func(p *podView, reason, text string)
	log        logr.Logger
	waiting    map[types.NamespacedName]wait
}

// A wait is the time at which the leader first saw that the scheduler finds no node for a pod. The
// time in the pod's condition is not used, because it is that of the pod's creation if the pod had
// another gate before.
type wait struct {
	pod   types.UID
	since time.Time
}

// A pendingPod is a pod that waits for its node, and the facts that decide whether it is evicted.
type pendingPod struct {
	pod     *podView
	node    *corev1.Node
	lease   []*reservation // the pod's reservations on the pinned node
	since   time.Time      // when the leader first saw that the pod waits
	timeout time.Duration
}

// awaitsNode reports whether a pod in the mode require waits for its node, and has a controller
// that would create another pod.
func (p *podView) awaitsNode() bool {
	return p.Required && p.Node == "" && p.Gates == 0 && p.Unschedulable && p.Controlled && p.DeletionTimestamp == nil
}

// expired returns the reason if a pod should be evicted now, otherwise "" and the delay before the
// next check.
func (s pendingPod) expired(now time.Time) (why pinReason, text string, again time.Duration) {
	p := s.pod
	waited := now.Sub(s.since)
	switch {
	case len(s.lease) == 0:
		// The pinned node has no reservation for the pod. The agent might be about to publish the
		// same lease under a new object name, so the pod is not evicted at once. The reason does
		// not describe the node, because a user may have written its name into the annotation.
		if waited < min(s.timeout, publishLag) {
			return "", "", min(s.timeout, publishLag) - waited
		}
		return noReservation, "its address on " + p.Pinned + " is no longer reserved", 0
	case s.node == nil:
		why, text = nodeGone, p.Pinned+" is gone"
	default:
		if why, text = unschedulable(s.node, p.Tolerations); why == "" {
			why, text = "NodeFull", p.UnschedulableWhy
		}
	}
	if waited < s.timeout {
		return "", "", s.timeout - waited
	}
	return why, text, 0
}

// Reconcile evicts a pod whose node has not accepted it in time. It first marks the reservations,
// and deletes the pod in a later call, markDelay after the mark.
func (v *evictor) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	p := v.cluster.pod(req.String())
	if p == nil || !p.awaitsNode() {
		delete(v.waiting, req.NamespacedName)
		return reconcile.Result{}, nil
	}
	if v.waiting[req.NamespacedName].pod != p.UID {
		v.waiting[req.NamespacedName] = wait{p.UID, v.cluster.now()}
	}
	if !v.cluster.Synced() {
		return reconcile.Result{RequeueAfter: markDelay}, nil
	}
	node, err := v.cluster.node(ctx, p.Pinned)
	if err != nil {
		return reconcile.Result{}, err
	}
	s := pendingPod{pod: p, node: node, since: v.waiting[req.NamespacedName].since, timeout: v.timeout}
	for _, r := range v.cluster.reservationsFor(p) {
		if r.Node == p.Pinned {
			s.lease = append(s.lease, r)
		}
	}
	why, text, again := s.expired(v.cluster.now())
	if why == "" {
		return reconcile.Result{RequeueAfter: again}, nil
	}
	marked, err := v.mark(ctx, s.lease)
	if err != nil {
		return reconcile.Result{}, err
	}
	if marked {
		return reconcile.Result{RequeueAfter: markDelay}, nil
	}
	return reconcile.Result{}, v.evict(ctx, p, why, text)
}

// mark marks reservations as abandoned, so that no pod is pinned to them again. It reports whether
// it has marked one, so that the caller waits for markDelay.
func (v *evictor) mark(ctx context.Context, lease []*reservation) (bool, error) {
	marked := false
	for _, r := range lease {
		if r.Abandoned || r.ID == "" {
			continue
		}
		object := &ipam.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}}
		err := v.client.Patch(ctx, object, merge(map[string]any{"metadata": map[string]any{
			"uid": r.UID, "annotations": map[string]any{wellknown.AnnotationPinAbandoned: r.ID}}}))
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("marking the reservation %s/%s: %w", r.Namespace, r.Name, err)
		}
		marked = true
	}
	return marked, nil
}

// evict deletes a pod, unless it has changed since it was read.
func (v *evictor) evict(ctx context.Context, p *podView, why pinReason, text string) error {
	err := v.client.Delete(ctx, bare(p), client.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion})
	switch {
	case apierrors.IsConflict(err):
		return nil // the pod has changed, and the change enqueues it again
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("evicting %s/%s: %w", p.Namespace, p.Name, err)
	}
	v.collectors.evictions.WithLabelValues(string(why)).Inc()
	v.log.Info("evicted a pod that its node did not take", "pod", p.Namespace+"/"+p.Name, "node", p.Pinned,
		"reason", why)
	v.report(p, reasonEvicted, fmt.Sprintf("evicted after it waited %s for %s; its successor may run elsewhere: %s",
		v.timeout, p.Pinned, text))
	return nil
}

func (v *evictor) setup(mgr manager.Manager) error {
	c, err := controller.New("evict", mgr, controller.Options{Reconciler: v, ReconciliationTimeout: callTimeout,
		MaxConcurrentReconciles: 1}) // v.waiting has no lock
	if err != nil {
		return err
	}
	return c.Watch(source.Func(func(_ context.Context,
		queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		v.cluster.pods.Handle(evictHandler(queue))
		return nil
	}))
}

// evictHandler returns the handler that enqueues the pods that wait for their node.
func evictHandler(queue workqueue.TypedInterface[reconcile.Request]) informer.Handler[*podView] {
	add := func(p *podView) {
		if p.awaitsNode() {
			queue.Add(requestOf(p))
		}
	}
	return informer.Handler[*podView]{
		Added: add,
		Updated: func(before, p *podView) {
			add(before) // Reconcile deletes the wait if it has ended
			add(p)
		},
		Deleted: add,
	}
}
