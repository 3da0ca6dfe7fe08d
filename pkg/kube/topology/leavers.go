package topology

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Leavers are the nodes that have left the cluster a moment ago. For a while they count as there: a node that is made again
// (a cloud that stops and starts a machine, `kubectl delete node` and a kubelet that registers anew) was never gone, and
// its pods wait for it. A node that this replica has never seen is gone for good once it has looked for as long.
type Leavers struct {
	grace time.Duration

	mu    sync.Mutex
	nodes map[string]leaver
}

type leaver struct {
	node *corev1.Node
	at   time.Time
}

// NewLeavers knows none. The grace is how long a node counts as there.
func NewLeavers(grace time.Duration) *Leavers {
	return &Leavers{grace: grace, nodes: map[string]leaver{}}
}

// Went takes note of a node that is gone.
func (l *Leavers) Went(n *corev1.Node, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes[n.Name] = leaver{n, now}
}

// Came takes note of a node that is there.
func (l *Leavers) Came(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.nodes, node)
}

// Over removes and returns the nodes whose grace is over.
func (l *Leavers) Over(now time.Time) []*corev1.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	var over []*corev1.Node
	maps.DeleteFunc(l.nodes, func(_ string, left leaver) bool {
		if now.Sub(left.at) < l.grace {
			return false
		}
		over = append(over, left.node)
		return true
	})
	return over
}

// All are those that still count as there.
func (l *Leavers) All() []*corev1.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*corev1.Node
	for _, name := range slices.Sorted(maps.Keys(l.nodes)) {
		all = append(all, l.nodes[name].node)
	}
	return all
}
