package persistentpodstate

import (
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// computeStatus returns the status to record, from the recorded status of o and the history of the
// workload's pods. workload is nil if it was deleted. nodes returns the labels of a node, and
// reports false if the node does not exist.
//
//   - The state of a pod is its node and annotations when it was last Ready.
//   - The state of a deleted pod is kept while the workload has the pod's ordinal. With the
//     retention policy WhenDeleted, it is kept while the workload exists.
//   - A workload with the same name but another UID is a different workload. Of the states of its
//     predecessor, only those of pods that it has adopted are kept.
//   - The recorded node labels have the values that the node has now. If the node is gone, the
//     labels that were last recorded are kept, because the zone of the node may still exist.
func computeStatus(
	o *pps.PersistentPodState, workload *workload, pods map[string]podHistory,
	nodes func(name string) (labels map[string]string, exists bool),
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
			states[name] = pps.PodState{NodeName: seen.Node, Annotations: pick(seen.Annotations, annotationsOf(o)),
				NodeTopologyLabels: states[name].NodeTopologyLabels}
		}
	}
	for name, state := range states {
		if labels, exists := nodes(state.NodeName); exists {
			state.NodeTopologyLabels = pick(labels, labelsOf(&o.Spec))
		} else if state.NodeName != o.Status.PodStates[name].NodeName {
			state.NodeTopologyLabels = nil // they were those of another node
		}
		states[name] = state
	}
	if len(states) > 0 {
		status.PodStates = states
	}
	return status
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

// labelsOf returns the keys of all node labels in a spec, sorted, without duplicates.
func labelsOf(s *pps.PersistentPodStateSpec) []string {
	var keys []string
	if s.RequiredPersistentTopology != nil {
		keys = append(keys, s.RequiredPersistentTopology.Labels()...)
	}
	for _, p := range s.PreferredPersistentTopology {
		keys = append(keys, p.Preference.Labels()...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func annotationsOf(o *pps.PersistentPodState) []string {
	var keys []string
	for _, a := range o.Spec.PersistentPodAnnotations {
		keys = append(keys, a.Key)
	}
	return keys
}

// pick returns the entries of a map with the given keys, nil if there are none.
func pick(from map[string]string, keys []string) map[string]string {
	var picked map[string]string
	for _, key := range keys {
		if value, ok := from[key]; ok {
			if picked == nil {
				picked = map[string]string{}
			}
			picked[key] = value
		}
	}
	return picked
}

// missing returns the node labels of the spec that a node does not have.
func missing(o *pps.PersistentPodState, labels map[string]string) []string {
	return slices.DeleteFunc(labelsOf(&o.Spec), func(key string) bool { _, ok := labels[key]; return ok })
}
