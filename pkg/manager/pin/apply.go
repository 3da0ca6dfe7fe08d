package pin

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// preferWeight is the highest weight that the API allows for a preferred term of a node affinity.
const preferWeight = 100

// retained reports whether a new pod may be pinned. It reports true if the annotation asks for
// retention, the pod has a name or a reservation name, the pod is not bound to a node yet, and the
// pod may be recreated on another node. The latter is not so for the pods of DaemonSets. Pods in
// the network of the host have no address of their own.
func retained(p *corev1.Pod) bool {
	isNamed := p.Name != "" || p.GenerateName != "" && reservationName(p) != ""
	if !isNamed || p.Spec.NodeName != "" || p.Spec.HostNetwork {
		return false
	}
	window, err := policy.ParseWindow(p.Annotations[policy.Annotation])
	kind, _ := kube.ControllerOf(p)
	return err == nil && window != 0 && kind.Kind != "DaemonSet"
}

// recreatingKinds are the controllers of Kubernetes and Kruise that create a deleted pod again at
// once.
var recreatingKinds = []schema.GroupKind{{Group: "apps", Kind: "StatefulSet"}, {Group: "apps", Kind: "ReplicaSet"},
	{Group: "apps.kruise.io", Kind: "StatefulSet"}, {Group: "apps.kruise.io", Kind: "CloneSet"}}

// recreated reports whether the controller of a pod is one of recreatingKinds, or of the kinds of
// --pin-kinds.
func recreated(p *corev1.Pod, kinds []schema.GroupKind) bool {
	kind, _ := kube.ControllerOf(p)
	return slices.Contains(recreatingKinds, kind) || slices.Contains(kinds, kind)
}

// strip removes what an earlier call in the same admission has written, because its decision may
// not be valid any more, and returns the node of that decision, "" if there was none. A new pod may
// have the same because its manifest was copied from a pinned pod.
//
// Users can write annotations too, so an annotation does not prove that apply has added a
// requirement: another webhook may restrict the pods of this user to that node. So strip removes a
// requirement only together with the marker in the same term.
func strip(p *corev1.Pod) (node string) {
	node = p.Annotations[kube.AnnotationPinnedNode]
	for _, key := range []string{kube.AnnotationPinnedNode, kube.AnnotationPinReason,
		policy.ExpectedAddresses} {
		delete(p.Annotations, key)
	}
	if node == "" || p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
		return node
	}
	a := p.Spec.Affinity.NodeAffinity
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		isOwn := func(t corev1.NodeSelectorTerm) bool { return isPinned(t, node) && empty(unpin(t, node)) }
		required.NodeSelectorTerms = slices.DeleteFunc(required.NodeSelectorTerms, isOwn)
		for i, t := range required.NodeSelectorTerms {
			required.NodeSelectorTerms[i] = unpin(t, node)
		}
		if len(required.NodeSelectorTerms) == 0 {
			a.RequiredDuringSchedulingIgnoredDuringExecution = nil
		}
	}
	a.PreferredDuringSchedulingIgnoredDuringExecution = slices.DeleteFunc(
		a.PreferredDuringSchedulingIgnoredDuringExecution, func(t corev1.PreferredSchedulingTerm) bool {
			return t.Weight == preferWeight && isPinned(t.Preference, node) && empty(unpin(t.Preference, node))
		})
	return node
}

// apply writes a decision on a pod: the label of retained pods, the annotations, and the node
// affinity. strip must have been called before. With the same decision, a second strip and apply
// have no further effect.
func apply(p *corev1.Pod, v decision) {
	metav1.SetMetaDataLabel(&p.ObjectMeta, kube.LabelRetained, kube.Retained)
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, kube.AnnotationPinReason, v.String())
	if !v.Pinned() {
		return
	}
	p.Annotations[kube.AnnotationPinnedNode] = v.Node
	if v.Expected != "" {
		p.Annotations[policy.ExpectedAddresses] = v.Expected
	}
	if a := control.NodeAffinity(p); v.Mode == policy.PinRequire {
		require(a, v.Node)
	} else {
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: preferWeight, Preference: pinned(corev1.NodeSelectorTerm{}, v.Node)})
	}
}

// marker is a requirement that every node meets. It shows that a requirement for a node in the same
// term is that of the pin.
var marker = corev1.NodeSelectorRequirement{Key: kube.AnnotationPinnedNode,
	Operator: corev1.NodeSelectorOpDoesNotExist}

// onNode returns the requirement that a pod must run on the given node, for the matchFields of a
// node selector term. The DaemonSet controller uses it too. The scheduler examines no other node
// for such a pod (docs/facts.md, "A required node name limits the search to that node").
func onNode(node string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
		Values: []string{node}}
}

// equals returns a function that reports whether a requirement is equal to another one.
func equals(want corev1.NodeSelectorRequirement) func(corev1.NodeSelectorRequirement) bool {
	return func(r corev1.NodeSelectorRequirement) bool { return equality.Semantic.DeepEqual(r, want) }
}

// pinned returns a term with the requirements of the pin to a node.
func pinned(t corev1.NodeSelectorTerm, node string) corev1.NodeSelectorTerm {
	t.MatchExpressions = append(slices.Clip(t.MatchExpressions), marker)
	t.MatchFields = append(slices.Clip(t.MatchFields), onNode(node))
	return t
}

// isPinned reports whether a term has the requirements of the pin to a node.
func isPinned(t corev1.NodeSelectorTerm, node string) bool {
	return slices.ContainsFunc(t.MatchExpressions, equals(marker)) &&
		slices.ContainsFunc(t.MatchFields, equals(onNode(node)))
}

// unpin returns a term without the requirements of the pin to a node, if it has both. A requirement
// of the user for the same node remains.
func unpin(t corev1.NodeSelectorTerm, node string) corev1.NodeSelectorTerm {
	if isPinned(t, node) {
		t.MatchExpressions = without(t.MatchExpressions, equals(marker))
		t.MatchFields = without(t.MatchFields, equals(onNode(node)))
	}
	return t
}

// without returns a copy of a list without the first element for which is returns true.
func without(list []corev1.NodeSelectorRequirement, is func(corev1.NodeSelectorRequirement) bool,
) []corev1.NodeSelectorRequirement {
	i := slices.IndexFunc(list, is)
	return slices.Delete(slices.Clone(list), i, i+1)
}

func empty(t corev1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0
}

// require restricts a pod to a node. The required terms of the pod are alternatives, so the
// requirement is added to each of them. An empty term remains empty: it matches no node, but with
// the requirement it would match this one.
func require(a *corev1.NodeAffinity, node string) {
	if a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{pinned(corev1.NodeSelectorTerm{}, node)}}
		return
	}
	terms := a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i, t := range terms {
		if !empty(t) {
			terms[i] = pinned(t, node)
		}
	}
}

// isRequired reports whether the pin allows a pod to run on no other node than the given one.
func isRequired(p *corev1.Pod, node string) bool {
	terms := slices.DeleteFunc(slices.Clone(control.RequiredTerms(p)), empty)
	isOther := func(t corev1.NodeSelectorTerm) bool { return !isPinned(t, node) }
	return len(terms) > 0 && !slices.ContainsFunc(terms, isOther)
}
