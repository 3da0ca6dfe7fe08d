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
		var terms []corev1.NodeSelectorTerm
		for _, t := range required.NodeSelectorTerms {
			if rest, isPinned := unpin(t, node); !isPinned || !empty(rest) {
				terms = append(terms, rest)
			}
		}
		if required.NodeSelectorTerms = terms; len(terms) == 0 {
			a.RequiredDuringSchedulingIgnoredDuringExecution = nil
		}
	}
	a.PreferredDuringSchedulingIgnoredDuringExecution = slices.DeleteFunc(
		a.PreferredDuringSchedulingIgnoredDuringExecution, func(t corev1.PreferredSchedulingTerm) bool {
			rest, isPinned := unpin(t.Preference, node)
			return t.Weight == preferWeight && isPinned && empty(rest)
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

// unpin returns a term without the requirements of the pin to a node, and whether it had both. A
// requirement of the user for the same node remains.
func unpin(t corev1.NodeSelectorTerm, node string) (rest corev1.NodeSelectorTerm, isPinned bool) {
	m := slices.IndexFunc(t.MatchExpressions, equals(marker))
	n := slices.IndexFunc(t.MatchFields, equals(onNode(node)))
	if m < 0 || n < 0 {
		return t, false
	}
	t.MatchExpressions = slices.Delete(slices.Clone(t.MatchExpressions), m, m+1)
	t.MatchFields = slices.Delete(slices.Clone(t.MatchFields), n, n+1)
	return t, true
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
func isRequired(p *corev1.Pod, node string) (required bool) {
	for _, t := range control.RequiredTerms(p) {
		if _, isPinned := unpin(t, node); isPinned {
			required = true
		} else if !empty(t) {
			return false
		}
	}
	return required
}
