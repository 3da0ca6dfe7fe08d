package pin

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A pod with a reservation name (policy.ReserveAs) takes an address that another pod with the name
// has left. Several pods with the name may live and be created at the same time, and each hold is
// for one of them. So a new pod is pinned to a node only if that has more addresses for the name
// than pods (nameCounts).

// indexName returns the values of the index byName.
func indexName(namespace, name string) []string {
	if name == "" {
		return nil
	}
	return []string{nameKey(namespace, name)}
}

// nameKey returns the key of a reservation name. It differs from the keys "namespace/pod", because
// the name of a pod has no colon.
func nameKey(namespace, name string) string { return namespace + "/as:" + name }

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
	return slices.ContainsFunc(c.pods.ByIndex(byName, nameKey(namespace, name)), func(other *podView) bool {
		return other.isAlive() && (other.Started || other.awaitsNode()) && other.Workload == workloadOf(p)
	})
}

// sharedName returns the text of the Event of a pod whose reservation name pods of another workload
// of the namespace use as well, "" for other pods.
func (c *cluster) sharedName(p *podView) string {
	for _, other := range c.pods.ByIndex(byName, nameKey(p.Namespace, p.For)) {
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

// nameCounts has what is on each node for a reservation name: addresses, and the living pods that
// use them. The handlers of the informers keep it up to date, so that a decision only counts.
type nameCounts struct {
	now func() time.Time

	mu      sync.RWMutex
	sources map[string]map[string]nameSource // by nameKey and UID of the reservation or pod
	sent    map[string][]sentPod             // by nameKey, the oldest first
}

// A nameSource is what a reservation or a pod says of a node. The zero nameSource says nothing.
type nameSource struct {
	node    string
	nodeUID string    // "" if not known
	address string    // "" if the pod has none yet
	alive   bool      // a pod that runs on the node, or was sent there
	seen    bool      // the API server has shown a pod with the address on the node
	until   time.Time // when the source does not count any more; zero if it counts as long as the object exists
}

func (s nameSource) counts(now time.Time) bool { return s.until.IsZero() || now.Before(s.until) }

// A sentPod is a pod that was sent to a node, and that no watch has shown yet.
type sentPod struct {
	node  string
	until time.Time
}

func newNameCounts(now func() time.Time) *nameCounts {
	return &nameCounts{now: now, sources: map[string]map[string]nameSource{}, sent: map[string][]sentPod{}}
}

// Set replaces what an object says for a name.
func (c *nameCounts) Set(name, uid string, s nameSource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s != (nameSource{}) {
		if c.sources[name] == nil {
			c.sources[name] = map[string]nameSource{}
		}
		c.sources[name][uid] = s
	} else if delete(c.sources[name], uid); len(c.sources[name]) == 0 {
		delete(c.sources, name)
	}
}

// Expire forgets what does not count any more.
func (c *nameCounts) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for name, sources := range c.sources {
		maps.DeleteFunc(sources, func(_ string, s nameSource) bool { return !s.counts(now) })
		if len(sources) == 0 {
			delete(c.sources, name)
		}
	}
	maps.DeleteFunc(c.sent, func(_ string, all []sentPod) bool { return !now.Before(all[len(all)-1].until) })
}

// Send records that a pod is sent to a node. It reports false, and records nothing, if the pod
// needs an address there and there is none.
func (c *nameCounts) Send(name, node string, needsAddress bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.count(name)[node]; needsAddress && (n == nil || n.free() <= 0) {
		return false
	}
	c.sent[name] = append(c.sent[name], sentPod{node, c.now().Add(sentFor)})
	return true
}

// Arrived is called for a pod that was sent to a node when a watch shows it, or when the webhook is
// called for it again.
func (c *nameCounts) Arrived(name, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.sent[name]
	if i := slices.IndexFunc(all, func(s sentPod) bool { return s.node == node }); i >= 0 {
		c.sent[name] = slices.Delete(all, i, i+1)
	}
	if len(c.sent[name]) == 0 {
		delete(c.sent, name)
	}
}

// A nodeCount is what a node has for a reservation name.
type nodeCount struct {
	uid       string
	addresses map[string]nameSource // by address; alive and seen are those of all sources
	users     int                   // living pods, with or without an address
	sent      int
}

// free returns how many addresses have no pod, and none that was sent for it.
func (n *nodeCount) free() int { return len(n.addresses) - n.users - n.sent }

// count returns what there is for a name, by node. The caller holds c.mu.
func (c *nameCounts) count(name string) map[string]*nodeCount {
	nodes, now := map[string]*nodeCount{}, c.now()
	for _, s := range c.sources[name] {
		if !s.counts(now) {
			continue
		}
		n := nodes[s.node]
		if n == nil {
			n = &nodeCount{addresses: map[string]nameSource{}}
			nodes[s.node] = n
		}
		n.uid = cmp.Or(n.uid, s.nodeUID)
		if s.alive {
			n.users++
		}
		if s.address != "" {
			a := n.addresses[s.address]
			a.alive, a.seen = a.alive || s.alive, a.seen || s.seen
			n.addresses[s.address] = a
		}
	}
	for _, s := range c.sent[name] {
		if n := nodes[s.node]; n != nil && now.Before(s.until) {
			n.sent++
		}
	}
	return nodes
}

// Targets returns the nodes that have an address for a name which no living pod has. Nodes with an
// address that the API server has shown come first, because a compromised node may publish
// reservations of pods that never existed; nodes to whose addresses other pods were sent come last.
// Otherwise the order is always the same, and reversed if backwards is true: two replicas that do
// not know of each other's decisions take addresses from both ends.
func (c *nameCounts) Targets(name string, backwards bool) (targets []pinTarget) {
	c.mu.RLock()
	nodes := c.count(name)
	c.mu.RUnlock()
	rank := map[string]int{}
	for node, n := range nodes {
		if len(n.addresses) <= n.users {
			continue
		}
		t := pinTarget{Node: node, NodeUID: n.uid, Contested: n.free() <= 0}
		var unused []string
		seen := 0
		for address, a := range n.addresses {
			if !a.alive {
				unused = append(unused, address)
			}
			if a.seen {
				seen++
			}
		}
		slices.Sort(unused)
		t.Addresses = strings.Join(unused[:min(len(unused), maxListed)], ",")
		switch {
		case t.Contested:
			rank[node] = 2
		case seen <= n.users:
			rank[node] = 1
		}
		targets = append(targets, t)
	}
	slices.SortFunc(targets, func(a, b pinTarget) int {
		order := cmp.Or(cmp.Compare(hash(name, a.Node), hash(name, b.Node)), cmp.Compare(a.Node, b.Node))
		if backwards {
			order = -order
		}
		return cmp.Or(cmp.Compare(rank[a.Node], rank[b.Node]), order)
	})
	return targets
}

func hash(name, node string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name + "\x00" + node)) // it never fails
	return h.Sum64()
}
