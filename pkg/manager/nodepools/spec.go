package nodepools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	// nameDelay is the time from a change of a reservation until it is named, so that several
	// changes are written together.
	nameDelay = 200 * time.Millisecond
	// deletedFor is how long a deleted reservation is named, unless it exists again before.
	deletedFor = 5 * time.Minute
	// endMargin is how long before the end of a hold its deletion counts as that end.
	endMargin = 30 * time.Second
	// checkInterval is the interval of the passes over the AddressRequests.
	checkInterval = 30 * time.Second
)

// A specReconciler names in the NodeAddressPool of each node the reservations that the node's agent
// should read. Agents do not watch reservations, because the API server would have to compare each
// change of a reservation for each node (docs/decisions.md, "Cost that does not grow with the
// nodes"). The object contains names only: the agent reads the reservations and pods, and decides
// what to do. It runs in the leader.
type specReconciler struct {
	set      *control.Reservations
	pools    *kube.Informer[*nodePool]
	requests *kube.Informer[*addressRequest]
	limits   *kube.Informer[policy.Limits]
	client   client.Client
	reader   client.Reader // of what is not cached
	now      func() time.Time
	queue    control.Queue

	// named are the AddressRequests that the agent of each node should read, nil until the first
	// pass over them with known limits.
	named map[string][]ipam.RequestReference
	// unwritten are the AddressRequests, by UID and resource version, whose status could not be
	// written.
	unwritten *flowcontrol.Backoff
	// shared are the ranges of each node that another one has as well, nil until the first
	// comparison.
	shared       map[string][]ipam.SharedRange
	sharedMetric *prometheus.GaugeVec

	mu      sync.Mutex
	deleted map[string][]deletedReservation // by node
}

type reference = ipam.ReservationReference

// A deletedReservation is a reservation that was deleted although its addresses seem to be
// reserved.
type deletedReservation struct {
	pod   string // "namespace/name"
	ref   reference
	until time.Time // when it is no longer named
}

// allRequests is the request for a pass over the AddressRequests. No node has a namespace.
var allRequests = control.RequestFor("all/requests")

func newSpecReconciler(set *control.Reservations, pools *kube.Informer[*nodePool], c client.Client,
	reader client.Reader) *specReconciler {
	return &specReconciler{set: set, pools: pools, client: c, reader: reader, now: time.Now,
		deleted: map[string][]deletedReservation{}, limits: kube.NewLimits(),
		requests:  kube.NewInformer(viewRequest, nil),
		unwritten: flowcontrol.NewBackOff(failedInterval, maxFailedInterval),
		sharedMetric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "leasehold_shared_ranges",
			Help: "Ranges of a node that another node has as well, where the pods of both may be on one link, by node.",
		}, []string{"node"})}
}

// start enqueues from now on the node of each reservation that changes, the nodes that have
// reservations of the same pod, the nodes whose NodeAddressPool names something else than before,
// and passes over the AddressRequests and the ranges when one of these changes.
func (r *specReconciler) start(ctx context.Context, queue control.Queue) {
	if !cache.WaitForCacheSync(ctx.Done(), r.set.HasSynced, r.pools.HasSynced) {
		return
	}
	r.queue = queue
	pool := func(p *nodePool) {
		queue.Add(control.RequestFor(p.node))
		queue.AddAfter(allRanges, compareDelay)
	}
	r.pools.Handle(kube.Handler[*nodePool]{Added: pool, Deleted: pool, Updated: func(before, now *nodePool) {
		if before.reservations != now.reservations || before.requests != now.requests ||
			before.shared != now.shared || !slices.Equal(before.ranges, now.ranges) {
			pool(now) // most updates change the numbers
		}
	}})
	r.requests.Handle(kube.Each(func(*addressRequest) { queue.AddAfter(allRequests, nameDelay) }))
	r.limits.Handle(kube.Each(func(policy.Limits) { queue.AddAfter(allRequests, nameDelay) }))
	r.set.Handle(kube.Handler[*control.Reservation]{Deleted: func(v *control.Reservation) {
		r.remember(v)
		queue.AddAfter(control.RequestFor(v.Node), deletedFor)
	}})
	r.set.Handle(kube.Each(func(v *control.Reservation) {
		queue.AddAfter(control.RequestFor(v.Node), nameDelay)
		for _, other := range r.set.OfPod(v.PodKey()) {
			queue.AddAfter(control.RequestFor(other.Node), nameDelay)
		}
	}))
	queue.Add(allRequests)
	queue.Add(allRanges)
	if cache.WaitForCacheSync(ctx.Done(), r.requests.HasSynced, r.limits.HasSynced) {
		queue.Add(allRequests)
	}
}

// remember remembers a reservation that was deleted, unless its agent deletes it at this time
// because its hold ends or a user has released it.
func (r *specReconciler) remember(v *control.Reservation) {
	now := r.now()
	isEnding := !v.Bound && !v.Until.IsZero() && v.Until.Before(now.Add(endMargin))
	if v.Releasing || isEnding {
		return
	}
	ref := referenceTo(v)
	ref.Generation = 0
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleted[v.Node] = append(r.deleted[v.Node], deletedReservation{v.PodKey(), ref, now.Add(deletedFor)})
}

func referenceTo(r *control.Reservation) reference {
	return reference{Namespace: r.Namespace, Name: r.Name, UID: string(r.UID), Generation: r.Generation}
}

// wanted returns the reservations that the agent of a node should read:
//
//   - its own, if a user releases it,
//   - its own, if it was deleted and the pod does not run elsewhere,
//   - those of other nodes where the pod runs, if the node holds addresses for the pod.
//
// A reservation that is being deleted is not read: what its agent has released may be kept by a
// finalizer for any time.
func (r *specReconciler) wanted(node string) []reference {
	now := r.now()
	var releases, refs []reference
	held := map[string]bool{} // the pods of the node's holds: an agent may have written several of one
	for _, own := range r.set.OfNode(node) {
		if own.Releasing && own.DeletionTimestamp == nil {
			releases = append(releases, referenceTo(own))
		}
		held[own.PodKey()] = held[own.PodKey()] || !own.Bound
	}
	for pod, isHeld := range held {
		for _, other := range r.set.OfPod(pod) {
			if isHeld && other.Node != node && other.Bound && other.Confirmed {
				refs = append(refs, referenceTo(other))
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleted[node] = slices.DeleteFunc(r.deleted[node], func(d deletedReservation) bool {
		_, exists := r.set.Get(d.ref.Namespace + "/" + d.ref.Name)
		return exists || !now.Before(d.until)
	})
	for _, d := range r.deleted[node] {
		// A pod that runs elsewhere is why its agent ended the hold.
		runsElsewhere := func(v *control.Reservation) bool { return v.Node != node && v.Confirmed }
		if !slices.ContainsFunc(r.set.OfPod(d.pod), runsElsewhere) {
			refs = append(refs, d.ref)
		}
	}
	if len(r.deleted[node]) == 0 {
		delete(r.deleted, node)
	}
	for _, list := range [][]reference{releases, refs} {
		slices.SortFunc(list, func(a, b reference) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
		})
	}
	of := func(ref reference) string { return ref.Namespace }
	refs = append(inTurn(releases, of), inTurn(refs, of)...)
	return refs[:min(len(refs), ipam.MaxReservations)]
}

// inTurn takes the first of each namespace, then the second of each, and so on: only so many are
// named, and none of a namespace waits for more of another one.
func inTurn[T comparable](all []T, namespace func(T) string) []T {
	turn, turns := map[string]int{}, map[T]int{}
	for _, one := range all {
		turns[one] = turn[namespace(one)]
		turn[namespace(one)]++
	}
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(turns[a], turns[b]) })
	return all
}

// Reconcile writes the NodeAddressPool of a node if it does not name what the agent should read. It
// does nothing if there is none: its creation enqueues the node again.
func (r *specReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	switch req {
	case allRequests:
		return r.nameRequests(ctx)
	case allRanges:
		return r.compareRanges()
	}
	reservations, requests, shared := r.wanted(req.Name), r.named[req.Name], r.shared[req.Name]
	pool, found := r.pools.Get(req.Name)
	if !found {
		return reconcile.Result{}, nil
	}
	if pool.reservations == digestOf(reservations) && (r.named == nil || pool.requests == digestOf(requests)) &&
		(r.shared == nil || pool.shared == digestOf(shared)) {
		return reconcile.Result{}, nil
	}
	spec := map[string]any{"reservations": reservations} // null removes a field
	if r.named != nil {
		spec["requests"] = requests
	}
	if r.shared != nil {
		spec["shared"] = shared
	}
	patch, _ := json.Marshal(map[string]any{"spec": spec})
	err := r.client.Patch(ctx, &ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: req.Name}},
		client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("writing the NodeAddressPool of %s: %w", req.Name, err)
	}
	return reconcile.Result{}, nil
}
