package topology

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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

// Inject binds a pod that is about to be created to where it was, and restores its annotations. What the pod's own
// template says stands: reasons say for people which of it kept something from being injected. Twice is as once.
//
// With release, the hostname of a node that is gone binds nobody (FIELD, P1).
func Inject(pod *corev1.Pod, o *pps.PersistentPodState, m Memory, release bool) (injected bool, reasons []string) {
	known := func(key string) (string, bool) {
		value, ok := m.NodeTopologyLabels[key]
		return value, ok && !(m.NodeGone && release && key == corev1.LabelHostname)
	}
	if r := o.Spec.RequiredPersistentTopology; r != nil {
		for _, key := range r.Labels() {
			value, ok := known(key)
			switch {
			case !ok && m.NodeGone && key == corev1.LabelHostname:
				reasons = append(reasons, fmt.Sprintf("node %s is gone", m.NodeName))
			case !ok:
				reasons = append(reasons, fmt.Sprintf("node %s has no label %s", m.NodeName, key))
			case excludes(pod, key, value):
				reasons = append(reasons, fmt.Sprintf("the pod's own selector does not allow %s=%s", key, value))
			default:
				require(pod, key, value)
				injected = true
			}
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

func require(pod *corev1.Pod, key, value string) {
	if pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = map[string]string{}
	}
	pod.Spec.NodeSelector[key] = value
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
