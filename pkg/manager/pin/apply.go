package pin

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// preferWeight is the highest weight of a preferred term.
const preferWeight = 100

// retained reports whether a new pod may be pinned: it has an address of its own that is retained,
// its name is known and may return, and it is not bound to a node.
func retained(p *corev1.Pod) bool {
	if p.Name == "" || p.Spec.NodeName != "" || p.Spec.HostNetwork {
		return false
	}
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil && owner.Kind == "DaemonSet" {
		return false
	}
	window, err := policy.ParseWindow(p.Annotations[policy.Annotation])
	return err == nil && window != 0
}

// strip removes the annotations and the gate that apply writes. They come from a copied manifest,
// or from an earlier call of the same admission, whose decision may not be valid any more. The
// affinity stays: annotations, which a user may write, do not show whether apply added it, or
// another webhook that restricts the user's pods.
func strip(p *corev1.Pod) {
	for _, key := range []string{wellknown.AnnotationPinnedNode, wellknown.AnnotationPinReason,
		wellknown.AnnotationExpectedAddresses} {
		delete(p.Annotations, key)
	}
	p.Spec.SchedulingGates = slices.DeleteFunc(p.Spec.SchedulingGates, isOurs)
	if len(p.Spec.SchedulingGates) == 0 {
		p.Spec.SchedulingGates = nil
	}
}

func isOurs(g corev1.PodSchedulingGate) bool { return g.Name == wellknown.GateNominate }

func gated(p *corev1.Pod) bool { return slices.ContainsFunc(p.Spec.SchedulingGates, isOurs) }

// apply writes a decision on a stripped pod. It is idempotent.
func apply(p *corev1.Pod, v decision) {
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[wellknown.LabelRetained] = wellknown.Retained
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[wellknown.AnnotationPinReason] = v.String()
	if !v.Pinned() {
		return
	}
	p.Annotations[wellknown.AnnotationPinnedNode] = v.Node
	if v.Addresses != "" {
		p.Annotations[wellknown.AnnotationExpectedAddresses] = v.Addresses
	}
	switch v.Mode {
	case policy.PinNominate:
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: wellknown.GateNominate})
	case policy.PinRequire:
		require(p, v.Node)
	case policy.PinPrefer:
		prefer(p, v.Node, v.Hostname)
	}
}

// onNode returns the requirement that DaemonSets use: the scheduler looks at no other node
// (docs/facts.md, "A required node name limits the search to that node").
func onNode(node string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
		Values: []string{node}}
}

// names reports whether a term has that requirement.
func names(t corev1.NodeSelectorTerm, node string) bool {
	return slices.ContainsFunc(t.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn &&
			slices.Equal(r.Values, []string{node})
	})
}

func nodeAffinity(p *corev1.Pod) *corev1.NodeAffinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	return p.Spec.Affinity.NodeAffinity
}

// require limits every required term to a node, because terms are alternatives. An empty term is
// left as it is: it matches nothing.
func require(p *corev1.Pod, node string) {
	a := nodeAffinity(p)
	if a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchFields: []corev1.NodeSelectorRequirement{onNode(node)}}}}
		return
	}
	terms := a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		if !empty(terms[i]) && !names(terms[i], node) {
			terms[i].MatchFields = append(terms[i].MatchFields, onNode(node))
		}
	}
}

func empty(t corev1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0
}

// requires reports whether a pod can run only on one node.
func requires(p *corev1.Pod, node string) bool {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
		return false
	}
	required := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return required != nil && len(required.NodeSelectorTerms) > 0 &&
		!slices.ContainsFunc(required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
			return !empty(t) && !names(t, node)
		})
}

// prefer adds our term, unless one says the same, by the node's name or, as a PersistentPodState
// does, by its hostname.
func prefer(p *corev1.Pod, node, hostname string) {
	a := nodeAffinity(p)
	for _, t := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		if t.Weight == preferWeight && (isHost(t.Preference, hostname) || isNode(t.Preference, node)) {
			return
		}
	}
	a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
		corev1.PreferredSchedulingTerm{Weight: preferWeight,
			Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{onNode(node)}}})
}

// isNode reports whether a term is about one node and nothing else.
func isNode(t corev1.NodeSelectorTerm, node string) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 1 && names(t, node)
}

// isHost reports whether a term is about one hostname and nothing else.
func isHost(t corev1.NodeSelectorTerm, hostname string) bool {
	if len(t.MatchExpressions) != 1 || len(t.MatchFields) > 0 {
		return false
	}
	r := t.MatchExpressions[0]
	return r.Key == corev1.LabelHostname && r.Operator == corev1.NodeSelectorOpIn &&
		slices.Equal(r.Values, []string{hostname})
}
