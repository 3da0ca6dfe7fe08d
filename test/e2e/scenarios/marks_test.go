package scenarios

import (
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// Cordon cordons a node until undo is called, or the scenario ends.
func (t *Test) Cordon(n *cluster.Node) (undo func()) {
	return t.mark([]string{"cordon", n.Name}, []string{"uncordon", n.Name})
}

// Label labels a node until undo is called, or the scenario ends. Then it has no such label.
func (t *Test) Label(n *cluster.Node, key, value string) (undo func()) {
	return t.mark([]string{"label", "node", n.Name, key + "=" + value}, []string{"label", "node", n.Name, key + "-"})
}

// Taint taints a node until undo is called, or the scenario ends. taint is key=value:effect.
func (t *Test) Taint(n *cluster.Node, taint string) (undo func()) {
	return t.mark([]string{"taint", "node", n.Name, taint}, []string{"taint", "node", n.Name, taint + "-"})
}

// mark changes a node by a command of kubectl, and undoes that by another.
func (t *Test) mark(on, off []string) (undo func()) {
	undo = untilDone(func() { t.Kubectl(off...) })
	t.Cleanup(undo)
	t.Kubectl(on...)
	return undo
}

// untilDone returns a function that calls f until it has returned once. If f ends the scenario, the
// scenario's cleanup calls it again.
func untilDone(f func()) func() {
	done := false
	return func() {
		if !done {
			f()
			done = true
		}
	}
}

type object = map[string]any
