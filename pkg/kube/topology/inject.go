package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// Memory is what is known of a pod that was there before.
type Memory struct {
	pps.PodState
	// NodeGone: the cluster has no such node any more.
	NodeGone bool
}

// Recall puts together what is known of a pod: what is recorded, and where its name was last seen. The latter is newer,
// and may not have been recorded yet: the pod was gone too soon. That a pod was assigned to a node where it never had an
// address only counts where nothing better is known.
func Recall(o *pps.PersistentPodState, pod string, last *Seen, nodes Nodes) (Memory, bool) {
	state, recorded := o.Status.PodStates[pod]
	if last != nil && (!recorded || last.stage >= started) {
		if last.Node != state.NodeName {
			state.NodeTopologyLabels = nil
		}
		state.NodeName = last.Node
		if last.stage == ready {
			state.Annotations = pick(last.Annotations, annotationsOf(o))
		}
		recorded = true
	}
	m := Memory{PodState: state}
	if labels, exists := nodes(state.NodeName); exists {
		m.NodeTopologyLabels = pick(labels, labelsOf(&o.Spec))
	} else {
		m.NodeGone = true
	}
	return m, recorded
}

// Undo takes back what an earlier call of the same admission has injected, or one whose pod was copied into a manifest: what
// is left is what the pod's own template says.
func Undo(pod *corev1.Pod) {
	for key, value := range requiredOf(pod.Annotations) {
		if pod.Spec.NodeSelector[key] == value {
			delete(pod.Spec.NodeSelector, key)
		}
	}
	for _, key := range []string{pps.AnnotationInjected, meta.AnnotationTopologyRequired, meta.AnnotationTopologyReason} {
		delete(pod.Annotations, key)
	}
}

// requiredOf are the node labels that were injected into a pod's node selector, as its annotations say.
func requiredOf(annotations map[string]string) map[string]string {
	required, err := labels.ConvertSelectorToLabelsMap(annotations[meta.AnnotationTopologyRequired])
	if err != nil {
		return nil // somebody else's words
	}
	return required
}

// Inject binds a pod that is about to be created to where it was, and restores its annotations. What the pod's own
// template says stands: reasons say for people which of it kept something from being injected. nodes are those that are
// known; if the pod's own selectors take the node where it was, that one will do.
//
// With release, the hostname of a node that is gone binds nobody (FIELD, P1).
func Inject(pod *corev1.Pod, o *pps.PersistentPodState, m Memory, nodes []*corev1.Node, release bool) (injected bool, reasons []string) {
	known := func(key string) (string, bool) {
		value, ok := m.NodeTopologyLabels[key]
		return value, ok && !(m.NodeGone && release && key == corev1.LabelHostname)
	}
	if r := o.Spec.RequiredPersistentTopology; r != nil {
		choice := choiceOf(pod, nodes)
		added := labels.Set{}
		for _, key := range r.Labels() {
			value, ok := known(key)
			own, asked := pod.Spec.NodeSelector[key]
			switch {
			case !ok && m.NodeGone && key == corev1.LabelHostname:
				reasons = append(reasons, fmt.Sprintf("node %s is gone", m.NodeName))
			case !ok:
				reasons = append(reasons, fmt.Sprintf("node %s has no label %s", m.NodeName, key))
			case asked && own == value:
			case !choice.narrow(key, value):
				reasons = append(reasons, fmt.Sprintf("the pod's own selectors leave no node with %s=%s", key, value))
			default:
				added[key] = value
			}
		}
		if len(added) > 0 {
			require(pod, added)
			annotate(pod, meta.AnnotationTopologyRequired, added.String())
			injected = true
		}
	}
	for _, p := range o.Spec.PreferredPersistentTopology {
		var term corev1.NodeSelectorTerm
		for _, key := range p.Preference.Labels() {
			if value, ok := known(key); ok {
				term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
					Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
			}
		}
		if len(term.MatchExpressions) > 0 {
			prefer(pod, corev1.PreferredSchedulingTerm{Weight: min(max(p.Weight, 1), 100), Preference: term})
			injected = true
		}
	}
	for _, key := range annotationsOf(o) {
		if value, ok := m.Annotations[key]; ok && !has(pod.Annotations, key) {
			annotate(pod, key, value)
			injected = true
		}
	}
	if injected {
		annotate(pod, pps.AnnotationInjected, o.Name)
	}
	if len(reasons) > 0 {
		annotate(pod, meta.AnnotationTopologyReason, strings.Join(reasons, "; "))
	}
	return injected, reasons
}

// A choice is what a pod's own selectors leave it to choose from.
type choice struct {
	pod   *corev1.Pod
	nodes []*corev1.Node // all that are known
	any   bool           // of which some satisfy the pod's own selectors
	left  []*corev1.Node // and these all that was added to them
}

func choiceOf(pod *corev1.Pod, nodes []*corev1.Node) *choice {
	left := slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool { return !takes(pod, n) })
	return &choice{pod: pod, nodes: nodes, any: len(left) > 0, left: left}
}

// takes tells whether the pod's own selectors allow a node.
func takes(pod *corev1.Pod, node *corev1.Node) bool {
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return ok && err == nil
}

// narrow asks for a label besides; false, and nothing is changed, if the pod's own selectors win. They do where they rule
// the value out by what they say of that label, and where they choose nodes of which none has it, while others have.
//
// What is not known does not count: a zone without nodes may get some, and so may selectors that no node satisfies. Not so a
// hostname, which no other node will have.
func (c *choice) narrow(key, value string) bool {
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

// having are the nodes that have a label.
func having(nodes []*corev1.Node, key, value string) []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool {
		v, ok := n.Labels[key]
		return !ok || v != value
	})
}

// excludes tells whether the pod's own selectors rule out a value of a label, whatever else a node may have.
func excludes(pod *corev1.Pod, key, value string) bool {
	if own, ok := pod.Spec.NodeSelector[key]; ok && own != value {
		return true
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool { return allows(t, key, value) })
}

// allows tells whether that part of a term which is about one label takes a value of it.
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
		return true // the API server will refuse the pod
	}
	node := &corev1.Node{}
	node.Labels = map[string]string{key: value}
	return selector.Match(node)
}

func require(pod *corev1.Pod, labels map[string]string) {
	if pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = map[string]string{}
	}
	maps.Copy(pod.Spec.NodeSelector, labels)
}

// prefer adds a term that is not there yet.
func prefer(pod *corev1.Pod, term corev1.PreferredSchedulingTerm) {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	a := pod.Spec.Affinity.NodeAffinity
	if !slices.ContainsFunc(a.PreferredDuringSchedulingIgnoredDuringExecution, func(t corev1.PreferredSchedulingTerm) bool {
		return equality.Semantic.DeepEqual(t, term)
	}) {
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution, term)
	}
}

func annotate(pod *corev1.Pod, key, value string) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[key] = value
}

func has(m map[string]string, key string) bool { _, ok := m[key]; return ok }
