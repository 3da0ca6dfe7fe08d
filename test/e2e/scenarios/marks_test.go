package scenarios

import "github.com/leasehold-cni/leasehold/test/e2e/cluster"

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
	undo = t.undo(func() { t.Kubectl(off...) })
	t.Kubectl(on...)
	return undo
}

// undo returns a function that calls f until it has returned once, and has the scenario's cleanup
// call that function.
func (t *Test) undo(f func()) (undo func()) {
	done := false
	undo = func() {
		if !done {
			f()
			done = true
		}
	}
	t.Cleanup(undo)
	return undo
}

type object = map[string]any
