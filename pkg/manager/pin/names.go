package pin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/notify"
)

const (
	// nameDelay is the time from a change of a reservation until it is named, so that several
	// changes are written together.
	nameDelay = 200 * time.Millisecond
	// nameInterval is the least time between two writes of NodeAddressPools.
	nameInterval = 50 * time.Millisecond
	// deletedFor is how long a deleted reservation is named, unless it exists again before.
	deletedFor = 5 * time.Minute
	// nameRetry is the time until a failed list or write of NodeAddressPools is repeated.
	nameRetry = 10 * time.Second
)

// A namer names in the NodeAddressPool of each node the reservations that the node's agent should
// read. Agents do not watch reservations, because the API server would have to compare each change
// of a reservation for each node (docs/decisions.md, "Cost that does not grow with the nodes"). The
// object contains names only: the agent reads the reservations and pods, and decides what to do.
// The namer runs in the leader.
type namer struct {
	cluster *cluster
	live    client.Reader // reads from the API server, not from a cache
	client  client.Client
	log     logr.Logger
	limit   time.Duration // time limit of each call
	queue   workqueue.TypedDelayingInterface[string]

	mu      sync.Mutex
	pods    map[string]map[string][]reference // by "namespace/pod" and node: what the agent should read
	nodes   map[string]map[string]bool        // by node: the keys of pods
	deleted map[string][]deletedReservation   // by "namespace/pod"
	written map[string][]reference            // by node: what its NodeAddressPool names
}

type reference = ipam.ReservationReference

// A deletedReservation is a reservation that was deleted although its addresses seem to be
// reserved.
type deletedReservation struct {
	node  string
	ref   reference
	until time.Time // when it is no longer named
}

func newNamer(c *cluster, live client.Reader, write client.Client, log logr.Logger) *namer {
	return &namer{cluster: c, live: live, client: write, log: log, limit: callTimeout,
		queue: workqueue.NewTypedDelayingQueue[string](), pods: map[string]map[string][]reference{},
		nodes: map[string]map[string]bool{}, deleted: map[string][]deletedReservation{},
		written: map[string][]reference{}}
}

// Start names reservations until ctx is done.
func (n *namer) Start(ctx context.Context) error {
	for !n.cluster.Synced() {
		if !notify.Wait(ctx, nil, 100*time.Millisecond) {
			return nil
		}
	}
	for n.readPools(ctx) != nil {
		if !notify.Wait(ctx, nil, nameRetry) {
			return nil
		}
	}
	n.cluster.reservations.Handle(n.handler())
	var running sync.WaitGroup
	defer running.Wait()
	defer n.queue.ShutDown()
	running.Go(func() {
		for n.work(ctx) && notify.Wait(ctx, nil, nameInterval) {
		}
	})
	for notify.Wait(ctx, nil, sweepInterval) {
		n.recheck()
	}
	return nil
}

// readPools reads what the NodeAddressPools name, from the API server's watch cache.
func (n *namer) readPools(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var pools ipam.NodeAddressPoolList
	err := n.live.List(call, &pools, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
	if err != nil {
		n.log.Error(err, "listing the NodeAddressPools failed, agents read changed reservations later")
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range pools.Items {
		if refs := p.Spec.Reservations; len(refs) > 0 {
			n.written[p.Name] = refs
			n.queue.Add(p.Name)
		}
	}
	return nil
}

func (n *namer) handler() informer.Handler[*reservation] {
	return informer.Handler[*reservation]{
		Added:   func(r *reservation) { n.changed(r) },
		Updated: func(_, r *reservation) { n.changed(r) },
		Deleted: n.removed,
	}
}

func (n *namer) changed(r *reservation) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.update(r.Namespace + "/" + r.Pod)
}

// removed remembers a reservation that was deleted, unless its agent deletes it at this time
// because its hold ends or a user has released it.
func (n *namer) removed(r *reservation) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key, now := r.Namespace+"/"+r.Pod, n.cluster.now()
	isEnding := !r.Bound && !r.Until.IsZero() && r.Until.Before(now.Add(maxReportAge))
	if !r.Releasing && !isEnding {
		ref := r.reference()
		ref.Generation = 0
		n.deleted[key] = append(n.deleted[key], deletedReservation{r.Node, ref, now.Add(deletedFor)})
	}
	n.update(key)
}

func (r *reservation) reference() reference {
	return reference{Namespace: r.Namespace, Name: r.Name, UID: string(r.UID), Generation: r.Generation}
}

// update computes which agents should read reservations of a pod, and enqueues the nodes for which
// that has changed. The caller holds n.mu.
func (n *namer) update(key string) {
	before, now := n.pods[key], n.wanted(key)
	for node := range before {
		if now[node] == nil {
			delete(n.nodes[node], key)
			n.queue.AddAfter(node, nameDelay)
		}
	}
	for node, refs := range now {
		if slices.Equal(before[node], refs) {
			continue
		}
		if n.nodes[node] == nil {
			n.nodes[node] = map[string]bool{}
		}
		n.nodes[node][key] = true
		n.queue.AddAfter(node, nameDelay)
	}
	if len(now) == 0 {
		delete(n.pods, key)
	} else {
		n.pods[key] = now
	}
}

// wanted returns, by node, the reservations of a pod that the node's agent should read:
//
//   - its own, if a user has set spec.release, or if it exists although its hold is over,
//   - its own, if it was deleted and the pod does not run elsewhere,
//   - those of other nodes where the pod runs, if the node holds addresses for the pod.
//
// The caller holds n.mu.
func (n *namer) wanted(key string) map[string][]reference {
	out := map[string][]reference{}
	name := func(node string, ref reference) { out[node] = append(out[node], ref) }
	now, all := n.cluster.now(), n.cluster.reservationsOf(key)
	exists := map[string]bool{}
	for _, r := range all {
		exists[r.Name] = true
		if r.HasRelease || r.isOver(now) {
			name(r.Node, r.reference())
		}
		for _, other := range all {
			if !r.Bound && other.Node != r.Node && other.Bound && other.Confirmed {
				name(r.Node, other.reference())
			}
		}
	}
	n.deleted[key] = slices.DeleteFunc(n.deleted[key], func(d deletedReservation) bool {
		return exists[d.ref.Name] || !now.Before(d.until)
	})
	for _, d := range n.deleted[key] {
		runsElsewhere := slices.ContainsFunc(all, func(r *reservation) bool { return r.Node != d.node && r.Confirmed })
		if !runsElsewhere { // otherwise its agent has ended the hold
			name(d.node, d.ref)
		}
	}
	if len(n.deleted[key]) == 0 {
		delete(n.deleted, key)
	}
	for _, refs := range out {
		slices.SortFunc(refs, order)
	}
	return out
}

func order(a, b reference) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// recheck updates what depends on the time, and enqueues the nodes whose last write has failed.
func (n *namer) recheck() {
	now := n.cluster.now()
	var over []string
	for _, r := range n.cluster.reservations.List() {
		if r.isOver(now) {
			over = append(over, r.Namespace+"/"+r.Pod)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key := range n.deleted {
		over = append(over, key)
	}
	for _, key := range over {
		n.update(key)
	}
	for node := range n.nodes {
		if !slices.Equal(n.namesOf(node), n.written[node]) {
			n.queue.Add(node)
		}
	}
}

// namesOf returns what the NodeAddressPool of a node should name. The caller holds n.mu.
func (n *namer) namesOf(node string) []reference {
	var refs []reference
	for key := range n.nodes[node] {
		refs = append(refs, n.pods[key][node]...)
	}
	slices.SortFunc(refs, order)
	return refs[:min(len(refs), ipam.MaxReservations)]
}

// work writes the NodeAddressPool of one node from the queue. It reports false when the queue is
// shut down.
func (n *namer) work(ctx context.Context) bool {
	node, stop := n.queue.Get()
	if stop {
		return false
	}
	defer n.queue.Done(node)
	if err := n.write(ctx, node); err != nil && ctx.Err() == nil {
		n.log.Error(err, "naming reservations failed, the agent reads them later", "node", node)
		n.queue.AddAfter(node, nameRetry)
	}
	return true
}

// write makes the NodeAddressPool of a node name the reservations that the agent should read. It
// does nothing if the node or its NodeAddressPool does not exist: an agent that starts reads all
// reservations of its node.
func (n *namer) write(ctx context.Context, node string) error {
	n.mu.Lock()
	refs, written := n.namesOf(node), n.written[node]
	if len(n.nodes[node]) == 0 {
		delete(n.nodes, node)
	}
	n.mu.Unlock()
	if slices.Equal(refs, written) {
		return nil
	}
	if object, err := n.cluster.node(ctx, node); object == nil || err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, n.limit)
	defer cancel()
	err := n.client.Patch(call, &ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: node}},
		merge(map[string]any{"spec": map[string]any{"reservations": refs}}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the NodeAddressPool of %s: %w", node, err)
	}
	if err == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.written[node] = refs; len(refs) == 0 {
			delete(n.written, node)
		}
	}
	return nil
}
