package persistentpodstate

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/pods"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// podHistory is what this replica has observed of the successive pods with one name.
type podHistory struct {
	// Pod is the existing pod, nil if there is none. It may be terminating.
	Pod *observation
	// Ready is the last observation of a pod that was Ready at that time, nil if none was. The pod
	// may have been deleted since.
	Ready *observation
	// Last is the last observation of a pod that had an address. If no pod with the name ever had
	// an address, it is the last observation of a pod that was scheduled to a node. It is nil if no
	// pod was scheduled.
	Last *observation

	deletedAt time.Time // zero while the pod exists
}

// Exists reports whether a pod with the name exists.
func (s podHistory) Exists() bool { return s.Pod != nil }

// observation is the state of a pod at one moment.
type observation struct {
	UID             types.UID
	ResourceVersion string
	Owner           types.UID // UID of the workload that controls the pod
	Created         time.Time
	Terminating     bool
	Node            string            // "" while the pod is not scheduled
	Hostname        string            // the hostname that Inject added to its node selector, "" if none
	Patience        lease.Window      // see patienceOf
	Annotations     map[string]string // see podViewOf
	// TooLong reports whether the annotations that a PersistentPodState names have more than
	// maxRecorded bytes, so that Annotations does not have them.
	TooLong bool
	stage   stage
}

// maxRecorded is how many bytes of annotations are recorded of a pod, at most.
const maxRecorded = 4 << 10

// stage is how far the start of a pod has progressed. A later stage has a higher value.
type stage int

const (
	waiting  stage = iota // not scheduled
	assigned              // scheduled to a node
	started               // has an address
	ready
)

// history has the histories of the pods of all workloads, in the memory of this replica. The
// recorded status of a PersistentPodState is not sufficient, because a pod may be deleted before
// its state is recorded, and its successor may be created a moment later.
type history struct {
	mu   sync.Mutex
	pods map[targetKey]map[string]*podHistory // by workload, by pod name
}

// newHistory returns an empty history.
func newHistory() *history { return &history{pods: map[targetKey]map[string]*podHistory{}} }

// Observe adds an observation of a pod.
func (s *history) Observe(target targetKey, pod string, seen *observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := s.pods[target]
	if byName == nil {
		byName = map[string]*podHistory{}
		s.pods[target] = byName
	}
	h := byName[pod]
	if h == nil {
		h = &podHistory{}
		byName[pod] = h
	}
	h.Pod, h.deletedAt = seen, time.Time{}
	if seen.stage == ready {
		h.Ready = seen
	}
	if seen.stage >= started || seen.stage == assigned && (h.Last == nil || h.Last.stage == assigned) {
		h.Last = seen
	}
}

// Deleted records that the pod with the given UID was deleted, or no longer belongs to the
// workload. It has no effect if a newer pod with the name was observed already. If no pod with the
// name was ever scheduled, there is nothing to remember: anybody may create and delete such pods.
func (s *history) Deleted(target targetKey, pod string, uid types.UID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.pods[target][pod]; h != nil && h.Pod != nil && h.Pod.UID == uid {
		h.Pod, h.deletedAt = nil, now
		if h.Last == nil {
			delete(s.pods[target], pod)
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
func (s *history) Last(t targetKey, owner types.UID, pod string) *observation {
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

// Waiting returns the workloads that have a pod that is not scheduled and requires the given
// hostname, because Inject added the hostname.
func (s *history) Waiting(hostname string) []targetKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	var targets []targetKey
	for target, byName := range s.pods {
		for _, h := range byName {
			if h.Exists() && h.Pod.stage == waiting && h.Pod.Hostname == hostname {
				targets = append(targets, target)
				break
			}
		}
	}
	return targets
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
	target targetKey
	name   string
	seen   *observation
}

// podViewOf returns the podView of a pod. It returns nil if no workload of the given kinds controls
// the pod.
//
// The view has the annotations with the keys that keys returns for the workload, and the start of
// those that the recorder reads.
func podViewOf(pod *corev1.Pod, kinds kindList, keys func(targetKey) []string) *podView {
	target, owner := ownerTarget(pod)
	if owner == nil || len(owner.Name) > informer.MaxName || len(owner.UID) > informer.MaxUID {
		return nil // the API server does not limit the texts of an owner reference
	}
	kind, ours := kinds.find(target.Kind)
	if !ours {
		return nil
	}
	target.Kind = kind.GroupKind() // the other one is a part of the reference's text
	annotations := pick(pod.Annotations, keys(target))
	tooLong := bytesIn(annotations) > maxRecorded
	if tooLong {
		annotations = nil
	}
	for key, limit := range map[string]int{pps.AnnotationInjected: informer.MaxName,
		annotationReason: informer.MaxNote} {
		if value, found := pod.Annotations[key]; found {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[key] = informer.Cut(value, limit)
		}
	}
	return &podView{target, pod.Name, &observation{
		UID:             pod.UID,
		ResourceVersion: pod.ResourceVersion,
		Owner:           owner.UID,
		Created:         pod.CreationTimestamp.Time,
		Terminating:     pod.DeletionTimestamp != nil,
		Node:            pod.Spec.NodeName,
		Hostname:        injectedHostname(pod),
		Patience:        patienceOf(pod.Annotations),
		Annotations:     annotations,
		TooLong:         tooLong,
		stage:           stageOf(pod),
	}}
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
	case pods.IsReady(pod):
		return ready
	case pod.Status.PodIP != "":
		return started
	}
	return assigned
}
