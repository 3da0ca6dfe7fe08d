package pin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
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

	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
)

const (
	// takeOverAfter is the age at which a replica lifts the gate of a pod that another one
	// admitted.
	takeOverAfter = 700 * time.Millisecond
	// nominationTimeout is how long a nomination lasts if no scheduler tries the pod. The scheduler
	// may be starting anew or have a long queue, so this only limits how long the node's resources
	// are reserved for a pod that plugins keep out of the queue.
	nominationTimeout = 5 * time.Minute
	// preemptionTime is how long after the scheduler has failed with a pod the pods that it
	// preempts may not have their condition yet.
	preemptionTime = 3 * time.Second
	// preemptionRecheck is the interval at which preempted pods are listed until they are gone.
	preemptionRecheck = 10 * time.Second
	// callTimeout is the time limit of the last call of a step. It is long, because repeating the
	// call does not help if the API server is slow.
	callTimeout = 15 * time.Second
	// firstGetTimeout is the time limit of the first attempt to read a pod that no watch shows. It
	// is short, because the connection may be dead.
	firstGetTimeout = 700 * time.Millisecond
	// recheckAfter is the delay before the next attempt if the informer is late, or if no worker is
	// free for retries.
	recheckAfter = 50 * time.Millisecond
	// maxProbePause is the longest delay between attempts for the one pod of each namespace that is
	// retried often (gateLimiter.Failed); maxRetryPause is the longest delay for the others.
	maxProbePause = time.Second
	maxRetryPause = 15 * time.Second
	// workers is the number of pods that are processed at the same time.
	workers = 16
	// retries is the number of workers that may process pods that have failed before.
	retries = workers / 2
)

// A step is a change of a pod's gate or nomination.
type step int

const (
	leave    step = iota // nothing
	nominate             // nominate the node, then lift the gate
	lift                 // lift the gate: it is too late for a nomination
	withdraw             // remove the nomination
)

// A podProgress is what a replica has observed of a pod that is not bound yet. Its times are of
// this replica's clock, because the API server's may differ.
type podProgress struct {
	lastGate  time.Time // when our gate became the pod's only one
	lifted    bool      // this replica has lifted the gate
	failed    bool      // this replica could not lift the gate, or not in time
	reported  bool      // there is an Event about that failure
	nominated time.Time // when the pod first had a nomination and no gate
	tried     time.Time // when a scheduler first could not place the pod despite the nomination
}

// observe returns the progress of a pod, given its present state.
func (s podProgress) observe(p *podView, now time.Time) podProgress {
	s.lastGate = since(s.lastGate, p.Gated && p.Gates == 1, now)
	s.nominated = since(s.nominated, !p.Gated && p.awaitsScheduler(), now)
	s.tried = since(s.tried, p.awaitsScheduler() && p.NotScheduled != "", now)
	return s
}

// since returns the time at which a condition became true, or the zero time if it is not true.
// before is the last result for the same condition.
func since(before time.Time, is bool, now time.Time) time.Time {
	switch {
	case !is:
		return time.Time{}
	case before.IsZero():
		return now
	}
	return before
}

// awaitsScheduler reports whether a pod has a nomination that the manager wrote, and is not bound
// yet.
func (p *podView) awaitsScheduler() bool {
	return p.Node == "" && p.NominatedByUs && p.Nominated != "" && p.Nominated == p.Pinned
}

// next returns the step for a pod in its present state, the delay until next should be called again
// (0 for no call), and the reason of a withdrawal. own reports whether this replica admitted the
// pod.
func next(p *podView, s podProgress, own bool, now time.Time) (step, time.Duration, string) {
	switch {
	case p.Gated && (p.Gates > 1 || s.lifted):
		return leave, 0, "" // our gate is lifted as the last one; or the informer is late
	case p.Gated:
		return gateStep(p, s, own, now)
	case !p.awaitsScheduler():
		return leave, 0, ""
	case p.NotScheduled != "":
		// If the scheduler found no pods to preempt, it has removed the nomination itself. If it
		// preempts pods on the nominated node, it relies on the nomination, although the manager
		// wrote it.
		if age := now.Sub(s.tried); !p.NeverPreempts && age < preemptionTime {
			return leave, preemptionTime - age, ""
		}
		return withdraw, 0, p.NotScheduled
	}
	if age := now.Sub(s.nominated); age < nominationTimeout {
		return leave, nominationTimeout - age, ""
	}
	return withdraw, 0, "TimedOut"
}

// gateStep returns the result of next for a pod whose only gate is ours.
func gateStep(p *podView, s podProgress, own bool, now time.Time) (step, time.Duration, string) {
	age := now.Sub(s.lastGate)
	switch {
	case age >= gateTimeout, p.Pinned == "":
		return lift, 0, ""
	case !own && age < takeOverAfter:
		return leave, takeOverAfter - age, ""
	case p.Nominated == p.Pinned:
		return lift, 0, "" // the other replica has nominated the node, but not lifted the gate
	}
	return nominate, 0, ""
}

// retryAfter returns the delay before the next attempt to lift a gate of the given age. It grows
// with the age, up to most, but there is always an attempt at gateTimeout.
func retryAfter(age, most time.Duration) time.Duration {
	again := min(max(age/2, 20*time.Millisecond), most)
	if age < gateTimeout {
		again = min(again, gateTimeout-age)
	}
	return again
}

// A nominator lifts the gates of pods, in every replica.
type nominator struct {
	cluster    *cluster
	gates      *gateLimiter
	client     client.Client
	live       client.Reader // the API server itself
	redial     func()        // closes the connections of client and live
	collectors *collectors
	report     func(p *podView, reason, text string)
	log        logr.Logger

	retries chan struct{} // one element for each worker that processes a pod which failed before

	mu       sync.Mutex
	progress map[types.UID]podProgress
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the controller runs
}

// admit reports whether a pod that is being admitted may get a gate. If so it enqueues the pod, so
// that the gate is lifted even if no watch shows the pod.
func (n *nominator) admit(ctx context.Context, namespace, name string) bool {
	n.mu.Lock()
	queue := n.queue
	n.mu.Unlock()
	if queue == nil || !n.gates.Admit(ctx, namespace+"/"+name) {
		return false
	}
	queue.AddAfter(requestFor(namespace+"/"+name), unseenTimeout)
	return true
}

// find returns a pod from the watch. If this replica has admitted the pod with a gate, but no watch
// shows it, find reads the pod from the API server; unseen is then true if the watch should have
// shown the pod. If there is no such pod, find returns nil and the delay before the next attempt,
// or 0.
func (n *nominator) find(ctx context.Context, req reconcile.Request) (p *podView, unseen bool, again time.Duration) {
	key := req.String()
	p = n.cluster.pod(key)
	if n.gates.Unwatched(key) {
		n.log.Info("watch of pods is stalled, making no gates for a while", "pod", key)
		n.cluster.watchAgain()
	}
	admitted, ask := n.gates.Unseen(key)
	if !ask {
		return p, false, 0
	}
	limit := callTimeout
	age := n.cluster.now().Sub(admitted)
	if age < unseenTimeout+firstGetTimeout {
		limit = firstGetTimeout
	}
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var pod corev1.Pod
	err := n.live.Get(call, req.NamespacedName, &pod)
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, n.gates.Missing(key)
	case err != nil:
		n.gates.Unanswered(key)
		n.redial()
		again = retryAfter(age, maxProbePause)
		n.log.Error(err, "reading a pod that no watch shows failed", "pod", key, "retryAfter", again)
		return nil, false, again
	case !gated(&pod):
		n.gates.Cancel(key)
		return p, false, 0
	case p != nil && p.UID == pod.UID:
		return p, false, 0
	}
	p = viewPod(&pod)
	n.observeSince(p, admitted)
	return p, pod.Labels[wellknown.LabelRetained] != "", 0
}

// Reconcile does the next step for a pod.
func (n *nominator) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if p := n.cluster.pod(req.String()); p != nil && n.gates.TakeProbe(p) {
		n.probe(ctx, p)
	}
	p, unseen, again := n.find(ctx, req)
	if p == nil {
		return reconcile.Result{RequeueAfter: again}, nil // the event of its deletion removed its progress
	}
	now := n.cluster.now()
	s := n.observe(p, now)
	what, again, why := next(p, s, n.gates.Own(req.String()), now)
	var err error
	switch what {
	case leave:
		return reconcile.Result{RequeueAfter: again}, nil
	case withdraw:
		preempting, problem := n.preempting(ctx, p)
		if preempting || problem != nil {
			return reconcile.Result{RequeueAfter: preemptionRecheck}, problem
		}
		if err = n.withdraw(ctx, p, why); !apierrors.IsConflict(err) {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	default:
		left := time.Duration(0)
		if what == nominate {
			left = gateTimeout - now.Sub(s.lastGate)
		}
		if s.failed {
			select {
			case n.retries <- struct{}{}:
				defer func() { <-n.retries }()
			default:
				return reconcile.Result{RequeueAfter: recheckAfter}, nil
			}
		}
		var again time.Duration
		if again, err = n.lift(ctx, p, left, unseen); err == nil {
			return reconcile.Result{RequeueAfter: again}, nil
		}
	}
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: recheckAfter}, nil // the informer will know more
	case unexpected(err) != nil:
		return reconcile.Result{RequeueAfter: n.failed(p, err)}, nil
	}
	return reconcile.Result{}, nil
}

// probe asks the API server, with a dry run, whether it would let the manager lift a gate in the
// namespace of a pod that has none.
func (n *nominator) probe(ctx context.Context, p *podView) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := liftGate(call, n.client, p.Namespace, p.Name, p.UID, client.DryRunAll)
	if err == nil {
		n.gates.Probed(p)
	}
	n.log.Info("probed whether gates can be lifted", "pod", keyOf(p), "error", err)
}

// failed records that a pod's gate could not be lifted, and returns the delay before the next
// attempt.
func (n *nominator) failed(p *podView, err error) time.Duration {
	now := n.cluster.now()
	most := maxRetryPause
	if n.gates.Failed(p) {
		most = maxProbePause
	}
	var age time.Duration
	report := false
	n.update(p, func(s *podProgress) {
		age = now.Sub(s.lastGate)
		report = age >= gateTimeout && !s.reported
		s.failed, s.reported = true, s.reported || report
	})
	again := retryAfter(age, most)
	n.log.Error(err, "lifting a gate failed", "pod", p.Namespace+"/"+p.Name, "age", age, "again", again)
	if report {
		n.report(p, reasonNotPossible, "it waits because its gate cannot be lifted: "+err.Error())
	}
	return again
}

// unexpected returns err, or nil if the reason of err may be that another replica has changed or
// deleted the object.
func unexpected(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// refused reports whether the API server rejects a call for a reason that does not pass by itself.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// observe updates and returns the progress of a pod.
func (n *nominator) observe(p *podView, now time.Time) podProgress {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.progress[p.UID].observe(p, now)
	n.progress[p.UID] = s
	return s
}

// observeSince updates the progress of a pod that no watch shows. Its only gate is assumed to be
// ours since lastGate, the time of its admission.
func (n *nominator) observeSince(p *podView, lastGate time.Time) {
	n.observe(p, n.cluster.now())
	n.update(p, func(s *podProgress) {
		if s.lastGate.After(lastGate) {
			s.lastGate = lastGate
		}
	})
}

func (n *nominator) update(p *podView, change func(*podProgress)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s, found := n.progress[p.UID]; found {
		change(&s)
		n.progress[p.UID] = s
	}
}

func (n *nominator) forget(p *podView) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.progress, p.UID)
}

// lift lifts the gate of a pod. First it tries, for at most left, to nominate the node that the pod
// is pinned to. If the API server rejects the nomination or does not answer in time, lift lifts the
// gate without a nomination, and the scheduler may choose any node. After any other error the gate
// remains, and the caller tries again. unseen reports that the pod was read from the API server
// because no watch has delivered it; lift then returns the delay before the pod is checked next,
// otherwise 0.
func (n *nominator) lift(ctx context.Context, p *podView, left time.Duration, unseen bool) (again time.Duration,
	err error) {
	start := n.cluster.now()
	nominated, late, err := n.nominateWithin(ctx, p, left)
	if err != nil {
		return 0, err
	}
	if late {
		n.gates.Late(p) // at once, because lifting the gate may take as long as the nomination did
		n.redial()
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lifted, err := liftGate(call, n.client, p.Namespace, p.Name, p.UID)
	if err != nil {
		if call.Err() != nil {
			n.redial()
		}
		return 0, fmt.Errorf("lifting the gate of %s/%s: %w", p.Namespace, p.Name, err)
	}
	if took := n.cluster.now().Sub(start); !late && took > gateTimeout {
		n.gates.Late(p)
		late = true
	}
	for _, key := range n.gates.Lifted(p, !late && !unseen) {
		n.queue.Add(requestFor(key))
	}
	if unseen {
		again = n.gates.LiftedUnseen(p)
		n.forget(p)
	}
	n.update(p, func(s *podProgress) { s.lifted = true })
	// The nomination may have been written although its answer was late, or another replica may
	// have written it.
	nominated = nominated || p.Pinned != "" && lifted.Status.NominatedNodeName == p.Pinned
	n.collectors.lifted.WithLabelValues(fmt.Sprint(nominated)).Inc()
	if !nominated && p.Pinned != "" && lifted.Spec.NodeName == "" {
		n.report(p, reasonNotPossible, fmt.Sprintf("not pinned: %s could not be nominated in time", p.Pinned))
	}
	return again, nil
}

// nominateWithin nominates the pinned node of a pod within the time left. late is true if there was
// no response in that time. A nomination that is refused or late is not an error.
func (n *nominator) nominateWithin(ctx context.Context, p *podView, left time.Duration) (nominated, late bool,
	err error) {
	if left <= 0 {
		return false, false, nil
	}
	inTime, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err = n.nominate(inTime, p, p.Pinned)
	late = inTime.Err() != nil
	if err != nil && !late && !refused(err) || apierrors.IsConflict(err) {
		return false, late, fmt.Errorf("nominating %s for %s/%s: %w", p.Pinned, p.Namespace, p.Name, err)
	}
	return err == nil, late, nil
}

// preempting reports whether the scheduler preempts pods on the nominated node for the pod.
func (n *nominator) preempting(ctx context.Context, p *podView) (bool, error) {
	if p.NotScheduled == "" || p.NeverPreempts {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var there corev1.PodList
	err := n.live.List(ctx, &there, client.MatchingFields{"spec.nodeName": p.Nominated})
	if err != nil {
		return false, fmt.Errorf("listing the pods on %s: %w", p.Nominated, err)
	}
	return slices.ContainsFunc(there.Items, func(victim corev1.Pod) bool {
		return slices.ContainsFunc(victim.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
				c.Reason == corev1.PodReasonPreemptionByScheduler
		})
	}), nil
}

// withdraw removes a nomination, so that the scheduler reserves no resources of the node for a pod
// that does not fit there.
func (n *nominator) withdraw(ctx context.Context, p *podView, why string) error {
	if err := n.nominate(ctx, p, ""); err != nil {
		return fmt.Errorf("withdrawing the nomination of %s/%s: %w", p.Namespace, p.Name, err)
	}
	n.collectors.withdrawals.WithLabelValues(why).Inc()
	text := fmt.Sprintf("the nomination of %s is withdrawn: no scheduler has tried the pod for %s",
		p.Pinned, nominationTimeout)
	if p.NotScheduled != "" {
		text = fmt.Sprintf("the nomination of %s is withdrawn: %s", p.Pinned, p.UnschedulableWhy)
	}
	n.report(p, reasonWithdrawn, text)
	return nil
}

// nominate writes the pod's nominated node, or removes it if node is "". It returns a conflict if
// the pod has changed since p was read, so that it does not overwrite a nomination of the
// scheduler.
func (n *nominator) nominate(ctx context.Context, p *podView, node string) error {
	var value any // null removes the field
	if node != "" {
		value = node
	}
	return n.client.Status().Patch(ctx, bare(p), merge(map[string]any{
		"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion},
		"status":   map[string]any{"nominatedNodeName": value},
	}), client.FieldOwner(wellknown.ManagerName))
}

// liftGate removes our gate from a pod, even if the pod has changed meanwhile. It does nothing if
// there is no gate. It returns the new state of the pod.
func liftGate(ctx context.Context, c client.Client, namespace, name string, uid types.UID,
	options ...client.PatchOption) (*corev1.Pod, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch, _ := json.Marshal(map[string]any{ // strings alone
		"metadata": map[string]any{"uid": uid},
		"spec": map[string]any{"schedulingGates": []any{map[string]any{"$patch": "delete",
			"name": wellknown.GateNominate}}},
	})
	return pod, c.Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch), options...)
}

// bare returns a Pod that has only the namespace, name and UID, as clients need it.
func bare(p *podView) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
}

func merge(fields map[string]any) client.Patch {
	patch, _ := json.Marshal(fields) // strings alone
	return client.RawPatch(types.MergePatchType, patch)
}

func (n *nominator) setup(mgr manager.Manager) error {
	nobody := false
	c, err := controller.New("nominate", mgr, controller.Options{
		Reconciler: n, NeedLeaderElection: &nobody, MaxConcurrentReconciles: workers,
		ReconciliationTimeout: gateTimeout + 2*callTimeout,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](20*time.Millisecond,
			500*time.Millisecond),
	})
	if err != nil {
		return err
	}
	return c.Watch(source.Func(func(_ context.Context,
		queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		n.mu.Lock()
		n.queue = queue
		n.mu.Unlock()
		n.cluster.pods.Handle(n.handler(queue))
		return nil
	}))
}

// handler returns the handler that enqueues the pods with a gate or a nomination.
func (n *nominator) handler(queue workqueue.TypedInterface[reconcile.Request]) informer.Handler[*podView] {
	gone := func(p *podView) {
		n.forget(p)
		if n.gates.Gone(p) {
			queue.Add(requestOf(p))
		}
	}
	add := func(p *podView) {
		n.gates.Seen(p)
		if p.Gated || p.awaitsScheduler() {
			n.observe(p, n.cluster.now()) // so that the time in the queue counts
			queue.Add(requestOf(p))
		} else if n.gates.IsProbe(p) {
			queue.Add(requestOf(p))
		}
	}
	return informer.Handler[*podView]{
		Added: add,
		Updated: func(before, p *podView) {
			if before.UID != p.UID {
				gone(before)
			} else if p.Node != "" {
				n.forget(before)
			}
			add(p)
		},
		Deleted: gone,
	}
}

func requestOf(p *podView) reconcile.Request { return requestFor(keyOf(p)) }

func keyOf(p *podView) string { return p.Namespace + "/" + p.Name }

// requestFor returns the request for a key "namespace/name".
func requestFor(key string) reconcile.Request {
	namespace, name, _ := strings.Cut(key, "/")
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}
