package persistentpodstate

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// podHistory is what this replica has observed of the successive pods with one name.
type podHistory struct {
	// Pod is the existing pod, nil if there is none. It may be terminating.
	Pod *podView
	// Ready is the last view of a pod that was Ready at that time, nil if none was. The pod may
	// have been deleted since.
	Ready *podView
	// Last is the last view of a pod that had an address. If no pod with the name ever had an
	// address, it is the last view of a pod that was scheduled to a node. It is nil if no pod was
	// scheduled.
	Last *podView

	deletedAt time.Time // zero while the pod exists
}

// Exists reports whether a pod with the name exists.
func (s podHistory) Exists() bool { return s.Pod != nil }

// history has the histories of the pods of all workloads, in the memory of this replica. The
// recorded status of a PersistentPodState is not sufficient, because a pod may be deleted before
// its state is recorded, and its successor may be created a moment later.
type history struct {
	mu   sync.Mutex
	pods map[targetKey]map[string]*podHistory // by workload, by pod name
}

// newHistory returns an empty history.
func newHistory() *history { return &history{pods: map[targetKey]map[string]*podHistory{}} }

// Observe adds a view of a pod.
func (s *history) Observe(p *podView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := s.pods[p.target]
	if byName == nil {
		byName = map[string]*podHistory{}
		s.pods[p.target] = byName
	}
	h := byName[p.name]
	if h == nil {
		h = &podHistory{}
		byName[p.name] = h
	}
	h.Pod, h.deletedAt = p, time.Time{}
	if p.stage == ready {
		h.Ready = p
	}
	if p.stage >= started || p.stage == assigned && (h.Last == nil || h.Last.stage == assigned) {
		h.Last = p
	}
}

// Deleted records that a pod was deleted, or no longer belongs to the workload. It has no effect if
// a newer pod with the name was observed already. If no pod with the name was ever scheduled, there
// is nothing to remember: anybody may create and delete such pods.
func (s *history) Deleted(p *podView, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.pods[p.target][p.name]; h != nil && h.Pod != nil && h.Pod.UID == p.UID {
		h.Pod, h.deletedAt = nil, now
		if h.Last == nil {
			delete(s.pods[p.target], p.name)
		}
	}
}

// Pods returns the histories of a workload's pods by name.
func (s *history) Pods(t targetKey) map[string]podHistory {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := make(map[string]podHistory, len(s.pods[t]))
	for name, h := range s.pods[t] {
		pods[name] = *h
	}
	return pods
}

// Last returns podHistory.Last of the pods with a name if that pod was controlled by the workload
// with the UID owner, else nil.
func (s *history) Last(t targetKey, owner types.UID, pod string) *podView {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.pods[t][pod]; h != nil && h.Last != nil && h.Last.Owner == owner {
		return h.Last
	}
	return nil
}

// Prune removes the histories of the deleted pods of a workload for which expected returns false:
// those that the workload will not recreate.
func (s *history) Prune(t targetKey, expected func(pod string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pods[t], func(pod string, h *podHistory) bool { return !h.Exists() && !expected(pod) })
}

// Expire removes the histories of pods that were deleted before the given time. By then their state
// is recorded, or no PersistentPodState needs it.
func (s *history) Expire(before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pods, func(_ targetKey, byName map[string]*podHistory) bool {
		maps.DeleteFunc(byName, func(_ string, h *podHistory) bool {
			return !h.Exists() && h.deletedAt.Before(before)
		})
		return len(byName) == 0
	})
}

// A podView is the part of a workload's pod that the informer keeps.
type podView struct {
	target          targetKey
	name            string
	UID             types.UID
	ResourceVersion string
	Owner           types.UID // UID of the workload that controls the pod
	Created         time.Time
	Terminating     bool
	Node            string            // "" while the pod is not scheduled
	Hostname        string            // the hostname that Inject added to its node selector, "" if none
	Patience        lease.Window      // see patienceOf
	Object          string            // pps.AnnotationInjected
	Reason          string            // the start of annotationReason
	Annotations     map[string]string // see keptAnnotations
	TooLong         bool              // see keptAnnotations
	stage           stage
}

// stage is how far the start of a pod has progressed. A later stage has a higher value.
type stage int

const (
	waiting  stage = iota // not scheduled
	assigned              // scheduled to a node
	started               // has an address
	ready
)

// podViewOf returns the podView of a pod. It returns nil if no workload of the given kinds controls
// the pod. named returns the keys of the annotations that are recorded of a workload's pods.
func podViewOf(pod *corev1.Pod, kinds kindList, named func(targetKey) []string) *podView {
	target, owner := ownerTarget(pod)
	if owner == nil || len(owner.Name) > kube.MaxName || len(owner.UID) > kube.MaxUID {
		return nil // the API server does not limit the texts of an owner reference
	}
	kind, ours := kinds.find(target.Kind)
	if !ours {
		return nil
	}
	target.Kind = kind.GroupKind() // the other one is a part of the reference's text
	kept, tooLong := keptAnnotations(pod.Annotations, named(target))
	return &podView{
		target:          target,
		name:            pod.Name,
		UID:             pod.UID,
		ResourceVersion: pod.ResourceVersion,
		Owner:           owner.UID,
		Created:         pod.CreationTimestamp.Time,
		Terminating:     pod.DeletionTimestamp != nil,
		Node:            pod.Spec.NodeName,
		Hostname:        injectedHostname(pod),
		Patience:        patienceOf(pod.Annotations),
		Object:          kube.Short(pod.Annotations[pps.AnnotationInjected], kube.MaxName),
		Reason:          kube.Cut(pod.Annotations[annotationReason], kube.MaxNote),
		Annotations:     kept,
		TooLong:         tooLong,
		stage:           stageOf(pod),
	}
}

// maxRecorded is how many bytes of annotations are recorded of a pod, at most.
const maxRecorded = 4 << 10

// keptAnnotations returns the annotations of a pod that may be recorded: all of them if they have
// at most maxRecorded bytes, because a PersistentPodState may name others later, and otherwise the
// named ones. tooLong reports whether these are longer than that: then none of them is recorded.
func keptAnnotations(all map[string]string, named []string) (kept map[string]string, tooLong bool) {
	if bytesIn(all) <= maxRecorded {
		return all, false
	}
	if kept = control.Pick(all, named...); bytesIn(kept) > maxRecorded {
		return nil, true
	}
	return kept, false
}

// injectedHostname returns the hostname that Inject added to the node selector of a pod. It returns
// "" if the node selector has no hostname, or if the user wrote it.
func injectedHostname(pod *corev1.Pod) string {
	hostname := pod.Spec.NodeSelector[corev1.LabelHostname]
	if hostname != requiredOf(pod.Annotations)[corev1.LabelHostname] {
		return ""
	}
	return hostname // not a part of the annotation, which may be long
}

// patienceOf returns how long the node of a pod may have been not ready before the pod does not
// require its hostname, according to annotationPatience: lease.Forever if the pod has none, or an
// invalid one.
func patienceOf(annotations map[string]string) lease.Window {
	patience, err := policy.ParsePatience(annotations[annotationPatience])
	if err != nil {
		return lease.Forever
	}
	return patience
}

func stageOf(pod *corev1.Pod) stage {
	switch {
	case pod.Spec.NodeName == "":
		return waiting
	case kube.IsReady(pod):
		return ready
	case pod.Status.PodIP != "":
		return started
	}
	return assigned
}
