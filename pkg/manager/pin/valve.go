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

// settle is how long the mark on a reservation is left to reach every replica before the pod that it is about is evicted.
const settle = time.Second

// A valve lets pods go that are required to wait for a node which does not take them: the affinity
// of a pending pod cannot be relaxed (docs/facts.md, "The affinity of a pending pod cannot be
// relaxed"), so the pod is deleted and its controller makes another one, which is not pinned to
// that reservation again. The leader does.
type valve struct {
	cluster *cluster
	client  client.Client
	timeout time.Duration
	meters  *meters
	tell    func(p *podView, reason, text string)
	log     logr.Logger
	waits   map[types.NamespacedName]wait
}

// A wait is since when the leader has seen that the scheduler finds no place for a pod. The pod's own condition does not tell:
// it keeps the time of the pod's creation if somebody else's gate was on it before.
type wait struct {
	pod   types.UID
	since time.Time
}

// A stay is what decides how long a pod goes on waiting.
type stay struct {
	pod     *podView
	node    *corev1.Node
	lease   []*reservation // on the pinned node
	since   time.Time      // when it was first seen to wait
	timeout time.Duration
}

// stuck reports whether a pod waits for its node that a controller would make again.
func (p *podView) stuck() bool {
	return p.Required && p.Node == "" && p.Gates == 0 && p.Unschedulable && p.Controlled && p.DeletionTimestamp == nil
}

// over reports whether a pod that is stuck has waited long enough: why, or when to ask again.
func (s stay) over(now time.Time) (why Reason, text string, again time.Duration) {
	p := s.pod
	waited := now.Sub(s.since)
	switch {
	case s.node == nil:
		why, text = NodeGone, p.Pinned+" is gone"
	case len(s.lease) == 0:
		// Nothing waits for it there any more. An agent may be a moment late with a new name for the same lease.
		if waited < min(s.timeout, publishLag) {
			return "", "", min(s.timeout, publishLag) - waited
		}
		return NoReservation, "its address on " + p.Pinned + " is kept no longer", 0
	default:
		if why, text = closed(s.node, p.Tolerations); why == "" {
			why, text = "NodeFull", p.UnschedulableWhy
		}
	}
	if waited < s.timeout {
		return "", "", s.timeout - waited
	}
	return why, text, 0
}

// Reconcile lets a pod go if its time is over: first the mark, then the pod.
func (v *valve) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	p := v.cluster.pod(req.String())
	if p == nil || !p.stuck() {
		delete(v.waits, req.NamespacedName)
		return reconcile.Result{}, nil
	}
	if v.waits[req.NamespacedName].pod != p.UID {
		v.waits[req.NamespacedName] = wait{p.UID, v.cluster.now()}
	}
	if !v.cluster.Synced() {
		return reconcile.Result{RequeueAfter: settle}, nil
	}
	node, err := v.cluster.node(ctx, p.Pinned)
	if err != nil {
		return reconcile.Result{}, err
	}
	s := stay{pod: p, node: node, since: v.waits[req.NamespacedName].since, timeout: v.timeout}
	for _, r := range v.cluster.reservationsOf(req.String()) {
		if r.Node == p.Pinned {
			s.lease = append(s.lease, r)
		}
	}
	why, text, again := s.over(v.cluster.now())
	if why == "" {
		return reconcile.Result{RequeueAfter: again}, nil
	}
	marked, err := v.mark(ctx, s.lease)
	if err != nil {
		return reconcile.Result{}, err
	}
	if marked {
		return reconcile.Result{RequeueAfter: settle}, nil
	}
	return reconcile.Result{}, v.evict(ctx, p, why, text)
}

// mark writes on the reservations that nobody is pinned to them again; false if they all say so already.
func (v *valve) mark(ctx context.Context, lease []*reservation) (bool, error) {
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

// evict deletes a pod that is still the one that was judged.
func (v *valve) evict(ctx context.Context, p *podView, why Reason, text string) error {
	err := v.client.Delete(ctx, bare(p), client.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion})
	switch {
	case apierrors.IsConflict(err):
		return nil // it has changed: its next event brings it here again
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("evicting %s/%s: %w", p.Namespace, p.Name, err)
	}
	v.meters.evictions.WithLabelValues(string(why)).Inc()
	v.log.Info("released", "pod", p.Namespace+"/"+p.Name, "node", p.Pinned, "reason", why)
	v.tell(p, reasonEvicted, fmt.Sprintf("evicted after it waited %s for %s; its successor may run elsewhere: %s",
		v.timeout, p.Pinned, text))
	return nil
}

func (v *valve) setup(mgr manager.Manager) error {
	c, err := controller.New("release", mgr, controller.Options{Reconciler: v, ReconciliationTimeout: callLife,
		MaxConcurrentReconciles: 1}) // of waits
	if err != nil {
		return err
	}
	return c.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		add := func(p *podView) {
			if p.stuck() {
				queue.Add(requestOf(p))
			}
		}
		v.cluster.pods.Handle(informer.Handler[*podView]{
			Added: add,
			Updated: func(before, p *podView) {
				add(before) // it may be over
				add(p)
			},
			Deleted: add,
		})
		return nil
	}))
}
