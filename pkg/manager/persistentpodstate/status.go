package persistentpodstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// A nodeByName returns the node with a name, nil if it does not exist.
type nodeByName func(name string) *corev1.Node

// computeStatus returns the status to record, from the recorded status of o and the workload's
// pods. workload is nil if it was deleted.
//
//   - The state of a pod is its node and annotations when it was last Ready.
//   - The state of a deleted pod is kept while the workload has the pod's ordinal. With the
//     retention policy WhenDeleted, it is kept while the workload exists.
//   - A workload with the same name but another UID is a different workload. Of the states of its
//     predecessor, only those of pods that it has adopted are kept.
//   - The recorded node labels have the values that the node has now. If the node is gone, the
//     labels that were last recorded are kept, because the zone of the node may still exist.
func computeStatus(
	o *pps.PersistentPodState, workload *workload, pods []*workloadPod, nodes nodeByName,
) pps.PersistentPodStateStatus {
	status := pps.PersistentPodStateStatus{ObservedGeneration: o.Generation, TargetUID: o.Status.TargetUID,
		PodStates: map[string]pps.PodState{}}
	isAlive := workload != nil && !workload.Terminating
	if isAlive {
		status.TargetUID = string(workload.UID)
	}
	existing := map[string]*workloadPod{}
	for _, pod := range pods {
		existing[pod.name] = pod
	}
	for name, state := range o.Status.PodStates {
		if stays(o, workload, name, existing[name]) {
			status.PodStates[name] = state
		}
	}
	for _, pod := range pods {
		if pod.stage == ready && (!isAlive || pod.Owner == workload.UID) {
			status.PodStates[pod.name] = pps.PodState{NodeName: pod.Node,
				NodeTopologyLabels: status.PodStates[pod.name].NodeTopologyLabels,
				Annotations:        control.Pick(pod.Annotations, annotationsOf(&o.Spec)...)}
		}
	}
	for name, state := range status.PodStates {
		status.PodStates[name] = withLabels(o, name, state, nodes)
	}
	return status
}

// withLabels returns the state of a pod with the labels that its node has now. If the node is gone,
// they are those that o has recorded of it.
func withLabels(o *pps.PersistentPodState, pod string, state pps.PodState, nodes nodeByName) pps.PodState {
	if n := nodes(state.NodeName); n != nil {
		state.NodeTopologyLabels = control.Pick(n.Labels, labelsOf(&o.Spec)...)
	} else if state.NodeName != o.Status.PodStates[pod].NodeName {
		state.NodeTopologyLabels = nil // they were those of another node
	}
	return state
}

// stays reports whether the recorded state of a pod is kept (see computeStatus). pod is nil if the
// pod does not exist.
func stays(o *pps.PersistentPodState, w *workload, name string, pod *workloadPod) bool {
	switch {
	case w == nil || w.Terminating:
		return pod != nil
	case o.Status.TargetUID == "" || o.Status.TargetUID == string(w.UID):
		return pod != nil || isExpected(o, w, name)
	}
	return pod != nil && pod.Owner == w.UID && pod.Created.Before(w.Created)
}

// isExpected reports whether the workload is expected to recreate the pod with the given name after
// it was deleted.
func isExpected(o *pps.PersistentPodState, w *workload, pod string) bool {
	n, ok := kube.OrdinalIn(w.Name, pod)
	return ok && (o.Spec.PersistentPodStateRetentionPolicy == pps.WhenDeleted || w.Ordinals.Has(n))
}

// termsOf returns the required and the preferred terms of a spec.
func termsOf(s *pps.PersistentPodStateSpec) (terms []*pps.NodeTopologyTerm) {
	if s.RequiredPersistentTopology != nil {
		terms = append(terms, s.RequiredPersistentTopology)
	}
	for i := range s.PreferredPersistentTopology {
		terms = append(terms, &s.PreferredPersistentTopology[i].Preference)
	}
	return terms
}

// labelsOf returns the keys of all node labels in a spec, sorted.
func labelsOf(s *pps.PersistentPodStateSpec) (keys []string) {
	for _, t := range termsOf(s) {
		keys = append(keys, t.Labels()...)
	}
	slices.Sort(keys)
	return keys
}

func annotationsOf(s *pps.PersistentPodStateSpec) []string {
	var keys []string
	for _, a := range s.PersistentPodAnnotations {
		keys = append(keys, a.Key)
	}
	return keys
}

// missing returns the node labels of the spec that a node does not have.
func missing(o *pps.PersistentPodState, labels map[string]string) []string {
	keys := slices.DeleteFunc(labelsOf(&o.Spec), func(key string) bool { _, ok := labels[key]; return ok })
	return slices.Compact(keys)
}
