package pin

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
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
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil && owner.Kind == "DaemonSet" {
		return false
	}
	window, err := policy.ParseWindow(p.Annotations[policy.Annotation])
	return err == nil && window != 0
}

// strip removes the annotations and the gate that apply writes. A new pod may have them because its
// manifest was copied from a pinned pod, or from an earlier call in the same admission, whose
// decision may no longer be valid.
//
// strip does not remove node affinity. Users can write annotations too, so the annotations are no
// proof that apply added a term: another webhook that restricts the pods of this user may have
// added it.
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

// isOurs reports whether a scheduling gate is the gate of the pin.
func isOurs(g corev1.PodSchedulingGate) bool { return g.Name == wellknown.GateNominate }

// gated reports whether a pod has the gate of the pin.
func gated(p *corev1.Pod) bool { return slices.ContainsFunc(p.Spec.SchedulingGates, isOurs) }

// apply writes a decision on a pod: the label of retained pods, the annotations, and what pins the
// pod in the mode of the decision. strip must have been called before. With the same decision, a
// second strip and apply have no further effect.
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

// onNode returns the requirement that a pod must run on the given node, for the matchFields of a
// node selector term. The DaemonSet controller uses it too. The scheduler examines no other node
// for such a pod (docs/facts.md, "A required node name limits the search to that node").
func onNode(node string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
		Values: []string{node}}
}

// names reports whether a term contains the requirement that onNode returns.
func names(t corev1.NodeSelectorTerm, node string) bool {
	return slices.ContainsFunc(t.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn &&
			slices.Equal(r.Values, []string{node})
	})
}

// nodeAffinity returns the node affinity of a pod, and adds an empty one if there is none.
func nodeAffinity(p *corev1.Pod) *corev1.NodeAffinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	if p.Spec.Affinity.NodeAffinity == nil {
		p.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	return p.Spec.Affinity.NodeAffinity
}

// require restricts a pod to a node. The required terms of the pod are alternatives, so the
// requirement is added to each of them. An empty term remains empty: it matches no node, but with
// the requirement it would match this one.
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

// requires reports whether the required node affinity of a pod allows no other node than the given
// one.
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

// prefer adds a preferred term for a node, unless the pod has an equivalent term of the same
// weight. An equivalent term names the node, or the hostname as a PersistentPodState does.
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

// isNode reports whether the only requirement of a term is the name of the node.
func isNode(t corev1.NodeSelectorTerm, node string) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 1 && names(t, node)
}

// isHost reports whether the only requirement of a term is the hostname.
func isHost(t corev1.NodeSelectorTerm, hostname string) bool {
	if len(t.MatchExpressions) != 1 || len(t.MatchFields) > 0 {
		return false
	}
	r := t.MatchExpressions[0]
	return r.Key == corev1.LabelHostname && r.Operator == corev1.NodeSelectorOpIn &&
		slices.Equal(r.Values, []string{hostname})
}
