package persistentpodstate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// formerState is the state of a pod's predecessor: the last pod that had the same name and ran.
type formerState struct {
	pps.PodState
	// Lost explains to users why the pod does not wait for the predecessor's node: the node is gone
	// from the cluster, or the pod has given it up (annotationPatience). "" if the pod may wait.
	Lost string
	// Required are the node labels that the pod's annotations say an earlier call in the same
	// admission has added (see reset).
	Required map[string]string
}

// findFormer combines the recorded state of a pod with last, the last view of a pod with its
// name. last is nil if this replica has observed none. last takes precedence, because it is newer:
// the predecessor may have been deleted before its state was recorded. But if the predecessor in
// last never got an address, last is used only if no state is recorded. findFormer reports false if
// there is neither.
func findFormer(o *pps.PersistentPodState, pod string, last *workloadPod, nodes nodeByName) (formerState, bool) {
	state, recorded := o.Status.PodStates[pod]
	if last != nil && (!recorded || last.stage >= started) {
		state.NodeName = last.Node
		if last.stage == ready {
			state.Annotations = control.Pick(last.Annotations, annotationsOf(&o.Spec)...)
		}
		recorded = true
	}
	return formerState{PodState: withLabels(o, pod, state, nodes)}, recorded
}

// reset removes the annotations that inject writes, and returns the labels for
// formerState.Required. A new pod may have such annotations from an earlier call in the same
// admission, or because its manifest was copied from an injected pod.
//
// reset does not remove selectors. Users can write annotations too, so the annotations are no proof
// that inject added a selector: another webhook that restricts the pods of this user may have added
// it.
func reset(pod *corev1.Pod) (required map[string]string) {
	required = requiredOf(pod.Annotations)
	for _, key := range []string{pps.AnnotationInjected, annotationRequired, annotationReason} {
		delete(pod.Annotations, key)
	}
	return required
}

// requiredOf returns the node labels that inject added to the node selector of a pod, according to
// the annotation annotationRequired. It returns nil if the annotation is invalid.
func requiredOf(annotations map[string]string) map[string]string {
	required, err := labels.ConvertSelectorToLabelsMap(annotations[annotationRequired])
	if err != nil {
		return nil // not written by leasehold
	}
	return required
}

// inject restricts a pod that is being created to nodes with the labels of its predecessor's node,
// as o requires, and restores the annotations of the predecessor. The selectors and annotations in
// the pod's own template take precedence. injected reports whether the pod was changed. reasons
// explain to users which labels were not required, and that the patience is invalid; both are also
// written to annotations of the pod.
//
// nodes are those that count as present, against which the requirements are checked.
func inject(pod *corev1.Pod, o *pps.PersistentPodState, former formerState, nodes []*corev1.Node,
) (injected bool, reasons []string) {
	known := maps.Clone(former.NodeTopologyLabels)
	if former.Lost != "" {
		delete(known, corev1.LabelHostname)
	}
	if sizeOfOwn(pod, former.Required) > maxOwn {
		reasons = []string{fmt.Sprintf("the pod's own selectors have more than %d requirements; none is added", maxOwn)}
	} else {
		if r := o.Spec.RequiredPersistentTopology; r != nil {
			injected, reasons = injectRequired(pod, r.Labels(), former, candidatesOf(pod, nodes), known)
		}
		for _, p := range o.Spec.PreferredPersistentTopology {
			if injectPreferred(pod, p.Weight, p.Preference.Labels(), known) {
				injected = true
			}
		}
	}
	for _, key := range annotationsOf(&o.Spec) {
		if value, ok := former.Annotations[key]; ok && !metav1.HasAnnotation(pod.ObjectMeta, key) {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value)
			injected = true
		}
	}
	if _, err := patienceOf(pod.Annotations); err != nil {
		reasons = append(reasons, err.Error())
	}
	if injected {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, pps.AnnotationInjected, o.Name)
	}
	if len(reasons) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationReason, strings.Join(reasons, "; "))
	}
	return injected, reasons
}

// maxOwn is how many labels, terms, requirements and values the selectors of a pod may have, so
// that it takes little time to compare them with each node.
const maxOwn = 1000

// sizeOfOwn returns how many a pod's own selectors have, without the labels that an earlier call in
// the same admission has added.
func sizeOfOwn(pod *corev1.Pod, added map[string]string) int {
	size := control.SizeOfSelectors(pod)
	for key := range added {
		if _, isAdded := pod.Spec.NodeSelector[key]; isAdded {
			size--
		}
	}
	return size
}

// injectRequired adds the labels with the given keys to the node selector of the pod, with the
// values of the predecessor's node, as far as they are known. It reports whether it has added any.
// reasons explain which were not added. A label that the pod's node selector has already with that
// value is not added and needs no reason, unless an earlier call in this admission added it: then
// it counts as added again.
func injectRequired(
	pod *corev1.Pod, keys []string, former formerState, c *candidates, known map[string]string,
) (injected bool, reasons []string) {
	added := labels.Set{}
	for _, key := range keys {
		value, ok := known[key]
		own, isSet := pod.Spec.NodeSelector[key]
		switch {
		case !ok && former.Lost != "" && key == corev1.LabelHostname:
			reasons = append(reasons, former.Lost)
		case !ok:
			reasons = append(reasons, fmt.Sprintf("node %s has no label %s", former.NodeName, key))
		case isSet && own == value && former.Required[key] == value:
			added[key] = value
		case isSet && own == value:
		case !c.narrow(key, value):
			reasons = append(reasons, fmt.Sprintf("the pod's own selectors leave no node with %s=%s", key, value))
		default:
			added[key] = value
		}
	}
	if len(added) == 0 {
		return false, reasons
	}
	pod.Spec.NodeSelector = labels.Merge(pod.Spec.NodeSelector, added)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationRequired, added.String())
	return true, reasons
}

// injectPreferred adds a preferred node affinity with the labels whose values are known, unless the
// pod has the same already. It reports false if it knows none of them.
func injectPreferred(pod *corev1.Pod, weight int32, keys []string, known map[string]string) bool {
	var term corev1.NodeSelectorTerm
	for _, key := range keys {
		if value, ok := known[key]; ok {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
		}
	}
	if len(term.MatchExpressions) == 0 {
		return false
	}
	added := corev1.PreferredSchedulingTerm{Weight: min(max(weight, 1), 100), Preference: term}
	isAdded := func(t corev1.PreferredSchedulingTerm) bool { return isSame(t, added) }
	a := control.NodeAffinity(pod)
	if !slices.ContainsFunc(a.PreferredDuringSchedulingIgnoredDuringExecution, isAdded) {
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
			added)
	}
	return true
}

// candidates are the nodes on which a pod may run, while labels are added to its node selector.
type candidates struct {
	pod   *corev1.Pod
	nodes []*corev1.Node // whether or not they match
	any   bool           // whether some nodes match the pod's own selectors
	left  []*corev1.Node // nodes that match the pod's own selectors and the labels added so far
}

func candidatesOf(pod *corev1.Pod, nodes []*corev1.Node) *candidates {
	own := nodeaffinity.GetRequiredNodeAffinity(pod)
	left := slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool {
		ok, err := own.Match(n)
		return !ok || err != nil
	})
	return &candidates{pod: pod, nodes: nodes, any: len(left) > 0, left: left}
}

// narrow adds a required label to the candidates. It reports true if the label may be required. It
// reports false and changes nothing if the pod's own selectors take precedence: they exclude the
// value of that label, or they match only nodes without the value although other nodes have it.
//
// The label may be required although no node has it, because a zone without nodes may get some
// later. Likewise, selectors that match no node at all may match a node that is added later. That
// does not apply to a hostname that an existing node has: no node that is added later will have it.
func (c *candidates) narrow(key, value string) bool {
	if with := having(c.left, key, value); len(with) > 0 {
		c.left = with
		return true
	}
	if excludes(c.pod, key, value) {
		return false
	}
	elsewhere := len(having(c.nodes, key, value)) > 0
	return !elsewhere || !c.any && key != corev1.LabelHostname
}

// having returns the nodes with the given label and value.
func having(nodes []*corev1.Node, key, value string) []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool {
		v, ok := n.Labels[key]
		return !ok || v != value
	})
}

// excludes reports whether the pod's own selectors exclude a value of a label on every node,
// whatever other labels the node has.
func excludes(pod *corev1.Pod, key, value string) bool {
	if own, ok := pod.Spec.NodeSelector[key]; ok && own != value {
		return true
	}
	terms := control.RequiredTerms(pod)
	allowed := func(t corev1.NodeSelectorTerm) bool { return allows(t, key, value) }
	return terms != nil && !slices.ContainsFunc(terms, allowed)
}

// allows reports whether the requirements of a term that are about one label match a value.
// Requirements about other labels are ignored.
func allows(t corev1.NodeSelectorTerm, key, value string) bool {
	var part []corev1.NodeSelectorRequirement
	for _, r := range t.MatchExpressions {
		if r.Key == key {
			part = append(part, r)
		}
	}
	if len(part) == 0 {
		return true
	}
	selector, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: part}}})
	if err != nil {
		return true // invalid: the API server will reject the pod
	}
	node := &corev1.Node{}
	node.Labels = map[string]string{key: value}
	return selector.Match(node)
}

// isSame reports whether two terms of this package are equal. A pod may have very many terms, so
// that they are not compared with equality.Semantic.
func isSame(a, b corev1.PreferredSchedulingTerm) bool {
	return a.Weight == b.Weight && len(a.Preference.MatchFields) == 0 &&
		slices.EqualFunc(a.Preference.MatchExpressions, b.Preference.MatchExpressions,
			func(x, y corev1.NodeSelectorRequirement) bool {
				return x.Key == y.Key && x.Operator == y.Operator && slices.Equal(x.Values, y.Values)
			})
}
