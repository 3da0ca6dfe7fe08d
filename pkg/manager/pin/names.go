package pin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A pod with a reservation name (policy.ReserveAs) takes an address that another pod with the name
// has left. Several pods with the name may live and be created at the same time, and each hold is
// for one of them. So a new pod is pinned to a node only if that has more addresses for the name
// than pods (cluster.count).

// nodeKey returns the key of a reservation name on a node.
func nodeKey(nameKey, node string) string { return nameKey + "/" + node }

// reservationName returns the reservation name of a pod, "" if it has none or an invalid one.
func reservationName(p *corev1.Pod) string {
	name, err := policy.ParseReservation(p.Annotations[policy.ReserveAs])
	if err != nil {
		return ""
	}
	return name
}

// maxWorkload is the length of what workloadOf returns, at most: a kind and the name of an object.
const maxWorkload = 63 + 1 + kube.MaxName

// workloadOf describes what created a pod, so that the pods of one workload have the same text. The
// ReplicaSets of a Deployment are one workload.
func workloadOf(p *corev1.Pod) (text string) {
	c := metav1.GetControllerOfNoCopy(p)
	switch {
	case c == nil && p.GenerateName != "":
		text = "pods " + p.GenerateName + "*"
	case c == nil:
		text = "pod " + p.Name
	default:
		text = c.Kind + " " + c.Name
		if name, ok := strings.CutSuffix(c.Name, "-"+p.Labels["pod-template-hash"]); ok && c.Kind == "ReplicaSet" {
			text = "Deployment " + name
		}
	}
	return kube.Cut(text, maxWorkload) // the API server does not limit the texts of an owner reference
}

// mayReplace reports whether a new pod may be the replacement of another one with its reservation
// name, because a pod of the same workload has an address, or waits for its node. It also reports
// true for the new pods of a workload that grows, for which the webhook finds nothing when it looks
// again.
func (c *cluster) mayReplace(namespace, name string, p *corev1.Pod) bool {
	all := c.pods.ByIndex(byName, control.NameKey(namespace, name))
	return slices.ContainsFunc(all, func(other *podView) bool {
		return other.isAlive() && (other.Started || other.awaitsNode()) && other.Workload == workloadOf(p)
	})
}

// sharedName returns the text of the Event of a pod whose reservation name pods of another workload
// of the namespace use as well, "" for other pods.
func (c *cluster) sharedName(p *podView) string {
	for _, other := range c.pods.ByIndex(byName, control.NameKey(p.Namespace, p.For)) {
		if p.For != "" && other.Workload != p.Workload && other.isAlive() {
			return fmt.Sprintf("%s and %s use the reservation name %q: the pods of each may get addresses of the "+
				"other; give each workload a name of its own in the annotation %s",
				p.Workload, other.Workload, p.For, policy.ReserveAs)
		}
	}
	return ""
}

// maxListed is how many addresses of a node a new pod is told of, at most.
const maxListed = 12

// sentFor is how long a pod that was sent to a node counts although no watch shows it.
const sentFor = 5 * time.Second

// recentPods are, for each reservation name, the pods that were sent to a node and that no watch
// has shown yet, and those that have ended and whose addresses their nodes may not have published
// yet.
type recentPods struct {
	now func() time.Time

	mu     sync.Mutex
	byName map[string][]recentPod // by control.NameKey
}

type recentPod struct {
	node  string
	ended *podView  // nil for a pod that was sent to the node
	until time.Time // when it does not count any more
}

func newRecentPods(now func() time.Time) *recentPods {
	return &recentPods{now: now, byName: map[string][]recentPod{}}
}

// Ended adds a pod that has ended.
func (r *recentPods) Ended(name string, p *podView) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byName[name] = append(r.byName[name], recentPod{p.Node, p, r.now().Add(publishLag)})
}

// Arrived is called for a pod that was sent to a node when a watch shows it, or when the webhook is
// called for it again.
func (r *recentPods) Arrived(name, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.byName[name]
	if i := slices.IndexFunc(all, func(s recentPod) bool { return s.ended == nil && s.node == node }); i >= 0 {
		r.byName[name] = slices.Delete(all, i, i+1)
	}
}

// Expire forgets what does not count any more.
func (r *recentPods) Expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	maps.DeleteFunc(r.byName, func(name string, all []recentPod) bool {
		r.byName[name] = slices.DeleteFunc(all, func(p recentPod) bool { return !now.Before(p.until) })
		return len(r.byName[name]) == 0
	})
}

// A nodeCount is what a node has for a reservation name.
type nodeCount struct {
	addresses map[string]addressUse
	users     int // living pods, with or without an address
	sent      int
}

// addressUse says of an address whether a living pod has it, whether the API server has shown a pod
// with it, and the UIDs of the pods that had it.
type addressUse struct {
	alive, seen bool
	former      []string
}

// free returns how many addresses have no pod, and none that was sent for it.
func (n *nodeCount) free() int { return len(n.addresses) - n.users - n.sent }

func (n *nodeCount) add(address, podUID string, alive, seen bool) {
	use := n.addresses[address]
	use.alive, use.seen = use.alive || alive, use.seen || seen
	if podUID != "" && !alive && !slices.Contains(use.former, podUID) {
		use.former = append(use.former, podUID)
	}
	n.addresses[address] = use
}

// count returns what there is for a reservation name, by node. The caller holds c.recent.mu.
//
//   - A reservation counts unless it is over or being released, or what the manager has seen of its
//     pod contradicts it. A bound one counts if the manager has seen its pod, because it will be
//     held when the pod ends.
//   - The address of a pod that is gone counts until its node has published or released it.
func (c *cluster) count(name string) map[string]*nodeCount {
	nodes, now := map[string]*nodeCount{}, c.now()
	at := func(node string) *nodeCount {
		if nodes[node] == nil {
			nodes[node] = &nodeCount{addresses: map[string]addressUse{}}
		}
		return nodes[node]
	}
	releasing := map[string]bool{} // by UID of the pod
	for _, r := range c.reservations.OfName(name) {
		last := c.last(r.PodKey())
		isHere := last.Node == r.Node && last.PodUID == r.PodUID
		if r.Releasing && isHere {
			releasing[r.PodUID] = true
		}
		if r.Releasing || r.IsOver(now) || last.contradicts(r) || r.Bound && !isHere {
			continue
		}
		at(r.Node).add(cmp.Or(r.Primary, r.Pod), r.PodUID, false, isHere)
	}
	for _, p := range c.pods.ByIndex(byName, name) {
		node := cmp.Or(p.Node, p.Sent)
		if node == "" {
			continue
		}
		if n := at(node); p.isAlive() {
			n.users++
		}
		if p.Started {
			at(node).add(control.Primary(p.Addresses), string(p.UID), p.isAlive(), true)
		}
	}
	for _, p := range c.recent.byName[name] {
		switch {
		case !now.Before(p.until):
		case p.ended == nil:
			at(p.node).sent++
		case !releasing[string(p.ended.UID)] && !c.lastEnded(keyOf(p.ended)).hasReleased(p.ended):
			at(p.node).add(control.Primary(p.ended.Addresses), string(p.ended.UID), false, true)
		}
	}
	return nodes
}

// send records that a pod is sent to a node. It reports false, and records nothing, if the pod
// needs an address there and there is none.
func (c *cluster) send(name, node string, needsAddress bool) bool {
	c.recent.mu.Lock()
	defer c.recent.mu.Unlock()
	if n := c.count(name)[node]; needsAddress && (n == nil || n.free() <= 0) {
		return false
	}
	c.recent.byName[name] = append(c.recent.byName[name], recentPod{node, nil, c.now().Add(sentFor)})
	return true
}

// list joins the first texts, at most maxListed of them.
func list(texts []string) string {
	slices.Sort(texts)
	return strings.Join(texts[:min(len(texts), maxListed)], ",")
}

// targets returns the nodes that have an address for a name which no living pod has. Nodes with an
// address that the API server has shown come first, because a compromised node may publish
// reservations of pods that never existed; nodes to whose addresses other pods were sent come last.
// Otherwise the order is always the same, and reversed if backwards is true: two replicas that do
// not know of each other's decisions take addresses from both ends.
func (c *cluster) targets(name string, backwards bool) (targets []pinTarget) {
	c.recent.mu.Lock()
	nodes := c.count(name)
	c.recent.mu.Unlock()
	rank := map[string]int{}
	for node, n := range nodes {
		if len(n.addresses) <= n.users {
			continue
		}
		t := pinTarget{Node: node, Contested: n.free() <= 0}
		var unused, expected []string
		seen := 0
		for address, a := range n.addresses {
			if !a.alive {
				unused = append(unused, address)
				for _, uid := range a.former {
					expected = append(expected, policy.ExpectedFrom(address, uid))
				}
			}
			if a.seen {
				seen++
			}
		}
		t.Addresses, t.Expected = list(unused), list(expected)
		switch {
		case t.Contested:
			rank[node] = 2
		case seen <= n.users:
			rank[node] = 1
		}
		targets = append(targets, t)
	}
	slices.SortFunc(targets, func(a, b pinTarget) int {
		order := cmp.Compare(ipam.Hash(nodeKey(name, a.Node)), ipam.Hash(nodeKey(name, b.Node)))
		if backwards {
			order = -order
		}
		return cmp.Or(cmp.Compare(rank[a.Node], rank[b.Node]), order)
	})
	return targets
}
