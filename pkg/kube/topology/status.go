package topology

import (
	"maps"
	"slices"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
)

// Nodes finds the labels of a node by its name; false if there is no such node.
type Nodes func(name string) (labels map[string]string, exists bool)

// Status is what should be recorded of a workload's pods. It follows from what was recorded and what is seen now; the
// workload is nil when it is gone.
//
//   - A pod that is Ready, or was when it was last seen, is recorded where it is.
//   - What is known of a pod that is away stays while its number is one that the workload should have; with WhenDeleted
//     as long as the workload is there.
//   - A workload of the same name but another UID is another workload, and knows only the pods that it has adopted.
//   - The labels of a node are those that it has now. Of a node that is gone, the last known ones stay: its zone is still
//     there.
func Status(o *pps.PersistentPodState, workload *Workload, pods map[string]Sight, nodes Nodes) pps.PersistentPodStateStatus {
	status := pps.PersistentPodStateStatus{ObservedGeneration: o.Generation, TargetUID: o.Status.TargetUID}
	if workload != nil && !workload.Leaving {
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
			state.NodeTopologyLabels = nil // those of another node are not true of it
		}
		states[name] = state
	}
	if len(states) > 0 {
		status.PodStates = states
	}
	return status
}

// stays tells whether the record of a pod is still of use.
func stays(o *pps.PersistentPodState, w *Workload, name string, pod Sight) bool {
	switch {
	case w == nil || w.Leaving:
		return pod.Alive()
	case o.Status.TargetUID == "" || o.Status.TargetUID == string(w.UID):
		return pod.Alive() || remembered(o, w, name)
	}
	return pod.Alive() && pod.Pod.Owner == w.UID && pod.Pod.Created.Before(w.Created)
}

// counts tells whether a pod that was Ready is to be recorded: it is there, or it will be back.
func counts(o *pps.PersistentPodState, w *Workload, name string, pod Sight) bool {
	if pod.Alive() && pod.Pod.UID == pod.Ready.UID {
		return w == nil || w.Leaving || pod.Pod.Owner == w.UID
	}
	return w != nil && !w.Leaving && pod.Ready.Owner == w.UID && (pod.Alive() || remembered(o, w, name))
}

// remembered tells whether a pod that is away is expected back.
func remembered(o *pps.PersistentPodState, w *Workload, pod string) bool {
	n, ok := ordinals.InName(w.Name, pod)
	return ok && (o.Spec.PersistentPodStateRetentionPolicy == pps.WhenDeleted || w.Ordinals.Has(n))
}

// labelsOf are all node labels that a spec speaks of.
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

// pick is the part of a map that has certain keys; nil if there is none.
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

// missing are the labels in question that a node does not have.
func missing(o *pps.PersistentPodState, labels map[string]string) []string {
	return slices.DeleteFunc(labelsOf(&o.Spec), func(key string) bool { _, ok := labels[key]; return ok })
}

// same tells whether two statuses say the same.
func same(a, b pps.PersistentPodStateStatus) bool {
	return a.ObservedGeneration == b.ObservedGeneration && a.TargetUID == b.TargetUID &&
		maps.EqualFunc(a.PodStates, b.PodStates, func(a, b pps.PodState) bool {
			return a.NodeName == b.NodeName && maps.Equal(a.NodeTopologyLabels, b.NodeTopologyLabels) &&
				maps.Equal(a.Annotations, b.Annotations)
		})
}
