package pin

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A pod with a reservation name (policy.ReserveAs) takes an address that another pod with the name
// has left. Several pods with the name may live and be created at the same time, and each hold is
// for one of them. So a new pod is pinned to a node only if that has free addresses for the name
// (cluster.count).

// reservationName returns the reservation name of a pod, "" if it has none or an invalid one.
func reservationName(p *corev1.Pod) string {
	name, _ := policy.ParseReserveAs(p.Annotations[policy.ReserveAs])
	return name
}

// maxWorkload is the length of what workloadOf returns, at most: a kind and the name of an object.
const maxWorkload = 63 + 1 + kube.MaxName

// workloadOf describes what created a pod, so that the pods of one workload have the same text. The
// ReplicaSets of a Deployment are one workload.
func workloadOf(p *corev1.Pod) (text string) {
	_, c := kube.ControllerOf(p)
	switch {
	case c.Name == "" && p.GenerateName != "":
		text = "pods " + p.GenerateName + "*"
	case c.Name == "":
		text = "pod " + p.Name
	default:
		text = c.Kind + " " + c.Name
		if name, ok := strings.CutSuffix(c.Name, "-"+p.Labels["pod-template-hash"]); ok && c.Kind == "ReplicaSet" {
			text = "Deployment " + name
		}
	}
	return kube.Cut(text, maxWorkload) // the API server does not limit the texts of an owner reference
}

// mayReplace reports whether a new pod of a workload may be the replacement of another one with its
// reservation name, because a pod of the workload has an address, or waits for its node. It also
// reports true for the new pods of a workload that grows, for which the webhook finds nothing when
// it looks again.
func (c *cluster) mayReplace(name, workload string) bool {
	return slices.ContainsFunc(c.nodesOf(name), func(n *nameOnNode) bool { return c.count(n).workloads[workload] })
}

// sharedName returns the text of the Event of a pod whose reservation name pods of another workload
// of the namespace use as well, "" for other pods.
func (c *cluster) sharedName(p *podView) string {
	for _, n := range c.nodesOf(control.NameKey(p.Namespace, p.For)) {
		for other := range c.count(n).workloads {
			if other != p.Workload {
				return fmt.Sprintf("%s and %s use the reservation name %q: the pods of each may get addresses of the "+
					"other; give each workload a name of its own in the annotation %s",
					p.Workload, other, p.For, policy.ReserveAs)
			}
		}
	}
	return ""
}

// A nameOnNode is a reservation name on a node. The node is "" for pods that have none yet.
type nameOnNode struct {
	node, key, order string       // key is control.NodeKey; the nodes of a name are sorted by order
	changes          atomic.Int64 // how often what is counted has changed
	last             atomic.Pointer[nameCount]
}

// nodesOf returns the nodes of a reservation name. The list does not change.
func (c *cluster) nodesOf(name string) []*nameOnNode {
	list, _ := c.names.Load(name)
	nodes, _ := list.([]*nameOnNode)
	return nodes
}

// changed has a reservation name counted again on a node. It does nothing if the name is "".
func (c *cluster) changed(namespace, name, node string) {
	if name == "" {
		return
	}
	name = control.NameKey(namespace, name)
	n := &nameOnNode{node: node, key: control.NodeKey(name, node)}
	n.order = ipam.Hash(n.key) + node
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := c.nodesOf(name)
	i, found := slices.BinarySearchFunc(nodes, n, func(a, b *nameOnNode) int { return cmp.Compare(a.order, b.order) })
	if !found {
		nodes = slices.Insert(slices.Clip(nodes), i, n)
		c.names.Store(name, nodes)
	}
	nodes[i].changes.Add(1)
}

// isUnused reports whether nothing has a reservation name on a node.
func (c *cluster) isUnused(n *nameOnNode) bool {
	return len(c.reservations.OfName(n.key))+len(c.pods.ByIndex(byName, n.key))+len(c.ended.ByIndex(byName, n.key)) == 0
}

// forgetUnused forgets the nodes where nothing has a reservation name any more.
func (c *cluster) forgetUnused() {
	for name, nodes := range c.names.Range {
		if !slices.ContainsFunc(nodes.([]*nameOnNode), c.isUnused) {
			continue
		}
		c.mu.Lock()
		used := slices.DeleteFunc(slices.Clone(c.nodesOf(name.(string))), c.isUnused)
		if c.names.Store(name, used); len(used) == 0 {
			c.names.Delete(name)
		}
		c.mu.Unlock()
	}
}

// A nameCount is what there is of a reservation name on a node. It does not change.
type nameCount struct {
	changes   int64           // nameOnNode.changes when it was counted
	until     time.Time       // when it has to be counted again although nothing has changed
	free      int             // addresses that are left for new pods
	seen      bool            // the API server has shown a pod with one of them
	addresses string          // those that no living pod has
	expected  string          // who had them, as in policy.ExpectedAddresses
	workloads map[string]bool // of living pods: whether one has an address or waits for its node
}

// addressUse says of an address whether a living pod has it, whether the API server has shown a pod
// with it, and who had it, as in policy.ExpectedAddresses.
type addressUse struct {
	alive, seen bool
	expected    []string
}

// count returns what there is of a reservation name on a node. It counts if something has changed
// since it has counted last:
//
//	what this replica has seen                                     address         pods
//	a living pod that is bound to the node, or was sent there      if it has one   1
//	a pod that is being deleted, has failed or has succeeded       if it has one   0
//	a pod that has ended, until its node publishes its address     if it had one   0
//	the reservation of a hold                                      yes             0
//	the reservation of a pod that was last seen on the node        yes             0
//	a reservation that is over, is being released, or contradicts  no              0
//	what was seen of its pod
//
// An address that several have counts once. So each living pod uses one of the addresses, whether
// it has it already or not, and the rest is free.
func (c *cluster) count(n *nameOnNode) *nameCount {
	now, changes := c.now(), n.changes.Load()
	if last := n.last.Load(); last != nil && last.changes == changes && now.Before(last.until) {
		return last
	}
	t := &nameCount{changes: changes, until: now.Add(time.Hour), workloads: map[string]bool{}}
	all, pods := addressUses{}, 0
	releasing := map[string]bool{} // by UID of the pod
	for _, r := range c.reservations.OfName(n.key) {
		last := c.last(r.PodKey())
		isHere := last.Node == r.Node && last.PodUID == r.PodUID
		switch {
		case r.Releasing:
			releasing[r.PodUID] = releasing[r.PodUID] || isHere
		case !r.IsOver(now) && !last.contradicts(r) && (!r.Bound || isHere):
			all.add(cmp.Or(r.Primary, r.Pod), r.PodUID, false, isHere)
			t.endsAt(r.End())
		}
	}
	for _, p := range c.ended.ByIndex(byName, n.key) {
		last := c.lastEnded(keyOf(p))
		if last.PodUID == string(p.UID) && last.unpublished(now) && !releasing[last.PodUID] {
			all.add(control.Primary(p.Addresses), last.PodUID, false, true)
			t.endsAt(last.Ended.Add(publishLag))
		}
	}
	for _, p := range c.pods.ByIndex(byName, n.key) {
		if p.Started {
			all.add(control.Primary(p.Addresses), string(p.UID), p.isAlive(), true)
		}
		if p.isAlive() {
			pods++
			t.workloads[p.Workload] = t.workloads[p.Workload] || p.Started || p.awaitsNode()
		}
	}
	seen, unused, had := 0, []string(nil), []string(nil)
	for address, use := range all {
		if use.seen {
			seen++
		}
		if !use.alive {
			unused, had = append(unused, address), append(had, use.expected...)
		}
	}
	t.addresses, t.expected = firstOf(unused), firstOf(had)
	t.free, t.seen = len(all)-pods, seen > pods
	n.last.Store(t)
	return t
}

// endsAt has something counted until a time, or as long as nothing changes if that is zero.
func (t *nameCount) endsAt(end time.Time) {
	if !end.IsZero() && end.Before(t.until) {
		t.until = end
	}
}

// addressUses are what is known of each address.
type addressUses map[string]addressUse

func (a addressUses) add(address, podUID string, alive, seen bool) {
	use := a[address]
	use.alive, use.seen = use.alive || alive, use.seen || seen
	if podUID != "" {
		use.expected = append(use.expected, policy.ExpectedFrom(address, podUID))
	}
	a[address] = use
}

// maxListed is how many addresses of a node a new pod is told of, at most.
const maxListed = 12

// firstOf sorts texts, and joins the first of them.
func firstOf(texts []string) string {
	slices.Sort(texts)
	texts = slices.Compact(texts)
	return strings.Join(texts[:min(len(texts), maxListed)], ",")
}

// hasChoice reports whether several nodes have free addresses for a name.
func (c *cluster) hasChoice(name string) bool {
	hasFree := func(n *nameOnNode) bool { return c.count(n).free > 0 }
	nodes := c.nodesOf(name)
	first := slices.IndexFunc(nodes, hasFree)
	return first >= 0 && slices.ContainsFunc(nodes[first+1:], hasFree)
}

const (
	// sentFor is how long a pod that was sent to a node is remembered.
	sentFor = 5 * time.Second
	// maxSent is the largest number of pods that are remembered of a reservation name and a
	// controller.
	maxSent = 512
)

// A sentPod is a pod that this replica has sent to a node a moment ago, so that the next ones are
// sent to other addresses although no watch shows it yet. Anybody may send reviews of pods that
// nobody creates, so it only orders the nodes that have free addresses.
type sentPod struct {
	node  string
	until time.Time
}

// A sentList has the pods of some reservation names and controllers, the last at the end. The lock
// is held while one is decided about, so that the next one is sent to another address.
type sentList struct {
	sync.Mutex
	pods []sentPod
}

var sentSeed = maphash.MakeSeed()

// sentIndex returns the index in cluster.sent of the pods of a reservation name and a controller.
// Only those know the UID of the controller who may read its pods. Others share the list as well,
// because there are not many.
func sentIndex(namespace string, p *corev1.Pod) uint16 {
	_, c := kube.ControllerOf(p)
	key := control.NameKey(namespace, reservationName(p)) + "/" + string(c.UID)
	return uint16(maphash.String(sentSeed, key) % uint64(len(cluster{}.sent)))
}

// forget removes a pod that was sent to a node, because the webhook is called for it again, or
// because a watch shows it.
func (l *sentList) forget(node string) {
	l.Lock()
	defer l.Unlock()
	if i := slices.IndexFunc(l.pods, func(p sentPod) bool { return p.node == node }); i >= 0 {
		l.pods = slices.Delete(l.pods, i, i+1)
	}
}

// add adds a pod, and removes those that are not remembered any more. The caller holds the lock.
func (l *sentList) add(node string, now time.Time) {
	l.pods = slices.DeleteFunc(l.pods, func(p sentPod) bool { return !now.Before(p.until) })
	l.pods = append(l.pods[max(0, len(l.pods)-maxSent+1):], sentPod{node, now.Add(sentFor)})
}

// targets returns the nodes that have free addresses for a name, the best first: those to which
// fewer pods were sent than there are addresses; of these, the ones with an address that the API
// server has shown, because a compromised node may publish reservations of pods that never existed.
// Otherwise the order is always the same. It is reversed unless this replica leads: two replicas
// that do not know of each other's decisions take addresses from both ends.
func (c *cluster) targets(name string, sent []sentPod) iter.Seq[pinTarget] {
	type candidate struct {
		*nameOnNode
		*nameCount
		rank int
	}
	pods := map[string]int{} // that were sent, by node
	for _, p := range sent {
		if c.now().Before(p.until) {
			pods[p.node]++
		}
	}
	var all []candidate
	for _, n := range c.nodesOf(name) {
		t := candidate{n, c.count(n), 0}
		if t.free <= 0 {
			continue
		}
		if missing := pods[n.node] - t.free; missing >= 0 {
			t.rank = 2 + missing
		} else if !t.seen {
			t.rank = 1
		}
		all = append(all, t)
	}
	if !c.isLeader() {
		slices.Reverse(all)
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.rank, b.rank) })
	return func(yield func(pinTarget) bool) {
		for _, n := range all {
			if !yield(pinTarget{Node: n.node, Addresses: n.addresses, Expected: n.expected,
				Last: c.lastEnded(n.key), HasStrike: c.hasStrike(n.key), Taken: n.rank > 1}) {
				return
			}
		}
	}
}
