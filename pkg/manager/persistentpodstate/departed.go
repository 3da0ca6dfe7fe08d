package persistentpodstate

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// departedNodes is the set of nodes that were removed from the cluster less than the grace period
// ago. They count as present, because a node may be registered again: a cloud provider stops and
// starts a machine, or a user deletes the Node object and the kubelet creates it again.
//
// The set has only the nodes whose removal this replica has observed. A node that is neither in the
// cluster nor in the set counts as gone once this replica has watched nodes for the grace period.
type departedNodes struct {
	grace time.Duration

	mu    sync.Mutex
	nodes map[string]departed
}

type departed struct {
	node *corev1.Node
	at   time.Time
}

// newDepartedNodes returns an empty set.
func newDepartedNodes(grace time.Duration) *departedNodes {
	return &departedNodes{grace: grace, nodes: map[string]departed{}}
}

// Removed records that a node was removed from the cluster.
func (d *departedNodes) Removed(n *corev1.Node, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes[n.Name] = departed{n, now}
}

// Added records that a node is present, and removes it from the set.
func (d *departedNodes) Added(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.nodes, node)
}

// Expire removes the nodes whose grace period is over from the set, and returns them.
func (d *departedNodes) Expire(now time.Time) []*corev1.Node {
	d.mu.Lock()
	defer d.mu.Unlock()
	var expired []*corev1.Node
	maps.DeleteFunc(d.nodes, func(_ string, left departed) bool {
		if now.Sub(left.at) < d.grace {
			return false
		}
		expired = append(expired, left.node)
		return true
	})
	return expired
}

// All returns the nodes of the set, sorted by name. The caller must not modify them.
func (d *departedNodes) All() []*corev1.Node {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*corev1.Node
	for _, name := range slices.Sorted(maps.Keys(d.nodes)) {
		all = append(all, d.nodes[name].node)
	}
	return all
}
