package scenarios

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// Cordon cordons a node until undo is called, or the scenario ends.
func (t *Test) Cordon(n *cluster.Node) (undo func()) {
	unschedulable := func(value bool) object { return object{"spec": object{"unschedulable": value}} }
	return t.mark(n, unschedulable(true), unschedulable(false))
}

// Label labels a node until undo is called, or the scenario ends. Then it has its earlier
// value.
func (t *Test) Label(n *cluster.Node, key, value string) (undo func()) {
	node, err := t.Client.CoreV1().Nodes().Get(t.Ctx, n.Name, metav1.GetOptions{})
	t.Must(err)
	var before any // null removes the label
	if old, ok := node.Labels[key]; ok {
		before = old
	}
	label := func(value any) object { return object{"metadata": object{"labels": object{key: value}}} }
	return t.mark(n, label(value), label(before))
}

// Taint taints a node until undo is called, or the scenario ends.
func (t *Test) Taint(n *cluster.Node, key, value string, effect corev1.TaintEffect) (undo func()) {
	taints := func(change func([]corev1.Taint) []corev1.Taint) {
		// Not a patch, because other programs write the list as well.
		t.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			node, err := t.Client.CoreV1().Nodes().Get(t.Ctx, n.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			node.Spec.Taints = change(node.Spec.Taints)
			_, err = t.Client.CoreV1().Nodes().Update(t.Ctx, node, metav1.UpdateOptions{})
			return err
		}))
	}
	undo = untilDone(func() {
		taints(func(all []corev1.Taint) []corev1.Taint {
			return slices.DeleteFunc(all, func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect })
		})
	})
	t.Cleanup(undo)
	taints(func(all []corev1.Taint) []corev1.Taint {
		return append(all, corev1.Taint{Key: key, Value: value, Effect: effect})
	})
	return undo
}

type object = map[string]any

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

// mark changes a node by one merge patch, and undoes that by another.
func (t *Test) mark(n *cluster.Node, on, off object) (undo func()) {
	patch := func(change object) {
		data, err := json.Marshal(change)
		t.Must(err)
		_, err = t.Client.CoreV1().Nodes().Patch(t.Ctx, n.Name, types.MergePatchType, data, metav1.PatchOptions{})
		t.Must(err)
	}
	undo = untilDone(func() { patch(off) })
	t.Cleanup(undo)
	patch(on)
	return undo
}
