package persistentpodstate

import (
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// A labelsByNode returns the labels of a node. It reports false if the node does not exist.
type labelsByNode func(name string) (labels map[string]string, exists bool)

// computeStatus returns the status to record, from the recorded status of o and the history of the
// workload's pods. workload is nil if it was deleted.
//
//   - The state of a pod is its node and annotations when it was last Ready.
//   - The state of a deleted pod is kept while the workload has the pod's ordinal. With the
//     retention policy WhenDeleted, it is kept while the workload exists.
//   - A workload with the same name but another UID is a different workload. Of the states of its
//     predecessor, only those of pods that it has adopted are kept.
//   - The recorded node labels have the values that the node has now. If the node is gone, the
//     labels that were last recorded are kept, because the zone of the node may still exist.
func computeStatus(
	o *pps.PersistentPodState, workload *workload, pods map[string]podHistory, nodes labelsByNode,
) pps.PersistentPodStateStatus {
	status := pps.PersistentPodStateStatus{ObservedGeneration: o.Generation, TargetUID: o.Status.TargetUID}
	if workload != nil && !workload.Terminating {
		status.TargetUID = string(workload.UID)
	}
	states := map[string]pps.PodState{}
	for name, state := range o.Status.PodStates {
		if stays(o, workload, name, pods[name]) {
			states[name] = state
		}
	}
	for name, pod := range pods {
		if seen := pod.Ready; seen != nil && counts(o, workload, name, pod) {
			states[name] = pps.PodState{NodeName: seen.Node, NodeTopologyLabels: states[name].NodeTopologyLabels,
				Annotations: control.Pick(seen.Annotations, annotationsOf(&o.Spec)...)}
		}
	}
	for name, state := range states {
		states[name], _ = withLabels(o, name, state, nodes)
	}
	status.PodStates = states
	return status
}

// withLabels returns the state of a pod with the labels that its node has now. If the node is gone,
// they are those that o has recorded of it; exists is false then.
func withLabels(o *pps.PersistentPodState, pod string, state pps.PodState, nodes labelsByNode,
) (_ pps.PodState, exists bool) {
	labels, exists := nodes(state.NodeName)
	if exists {
		state.NodeTopologyLabels = control.Pick(labels, labelsOf(&o.Spec)...)
	} else if state.NodeName != o.Status.PodStates[pod].NodeName {
		state.NodeTopologyLabels = nil // they were those of another node
	}
	return state, exists
}

// stays reports whether the state of the pod that is recorded in o is kept (see computeStatus).
func stays(o *pps.PersistentPodState, w *workload, name string, pod podHistory) bool {
	switch {
	case w == nil || w.Terminating:
		return pod.Exists()
	case o.Status.TargetUID == "" || o.Status.TargetUID == string(w.UID):
		return pod.Exists() || isExpected(o, w, name)
	}
	return pod.Exists() && pod.Pod.Owner == w.UID && pod.Pod.Created.Before(w.Created)
}

// counts reports whether to record the state in pod.Ready: that pod still exists, or the workload
// is expected to recreate it. pod.Ready must not be nil.
func counts(o *pps.PersistentPodState, w *workload, name string, pod podHistory) bool {
	if pod.Exists() && pod.Pod.UID == pod.Ready.UID {
		return w == nil || w.Terminating || pod.Pod.Owner == w.UID
	}
	return w != nil && !w.Terminating && pod.Ready.Owner == w.UID && (pod.Exists() || isExpected(o, w, name))
}

// isExpected reports whether the workload is expected to recreate the pod with the given name after
// it was deleted.
func isExpected(o *pps.PersistentPodState, w *workload, pod string) bool {
	n, ok := kube.OrdinalIn(w.Name, pod)
	return ok && (o.Spec.PersistentPodStateRetentionPolicy == pps.WhenDeleted || w.Ordinals.Has(n))
}

// labelsOf returns the keys of all node labels in a spec, sorted.
func labelsOf(s *pps.PersistentPodStateSpec) []string {
	var keys []string
	if s.RequiredPersistentTopology != nil {
		keys = append(keys, s.RequiredPersistentTopology.Labels()...)
	}
	for _, p := range s.PreferredPersistentTopology {
		keys = append(keys, p.Preference.Labels()...)
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
