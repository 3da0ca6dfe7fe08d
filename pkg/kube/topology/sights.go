package topology

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Sight is what was seen of a pod, and of those that had its name before it.
type Sight struct {
	// Pod is the living pod, which may be on its way out.
	Pod *Seen
	// Ready is the last of that name that was seen Ready, as it was then.
	Ready *Seen
	// Last is where a pod of that name was last: with an address, or, if none ever had one, just assigned.
	Last *Seen

	gone time.Time // since when there is no pod; zero while there is
}

// Alive tells whether there is a pod.
func (s Sight) Alive() bool { return s.Pod != nil }

// Seen is a pod at a moment.
type Seen struct {
	UID             types.UID
	ResourceVersion string
	Owner           types.UID // of the workload
	Created         time.Time
	Leaving         bool   // being deleted
	Node            string // "" while it waits for one
	Hostname        string // the hostname that was injected into its node selector
	Annotations     map[string]string
	stage           stage
}

type stage int

const (
	waiting  stage = iota // for a node
	assigned              // to a node
	started               // has an address
	ready
)

// Sights are the pods of all workloads of certain kinds, from their binding on: a pod may be gone before anything of it
// is recorded, and its successor there a moment later.
type Sights struct {
	mu   sync.Mutex
	pods map[Target]map[string]*Sight // by workload, by pod name
}

// NewSights knows nothing yet.
func NewSights() *Sights { return &Sights{pods: map[Target]map[string]*Sight{}} }

// See takes note of a pod.
func (s *Sights) See(target Target, pod string, seen *Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := s.pods[target]
	if byName == nil {
		byName = map[string]*Sight{}
		s.pods[target] = byName
	}
	sight := byName[pod]
	if sight == nil {
		sight = &Sight{}
		byName[pod] = sight
	}
	sight.Pod, sight.gone = seen, time.Time{}
	if seen.stage == ready {
		sight.Ready = seen
	}
	if seen.stage >= started || seen.stage == assigned && (sight.Last == nil || sight.Last.stage == assigned) {
		sight.Last = seen
	}
}

// Miss takes note that a pod is gone, or the workload's no longer.
func (s *Sights) Miss(target Target, pod string, uid types.UID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sight := s.pods[target][pod]; sight != nil && sight.Pod != nil && sight.Pod.UID == uid {
		sight.Pod, sight.gone = nil, now
	}
}

// Of are the pods of a workload, by name.
func (s *Sights) Of(t Target) map[string]Sight {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := make(map[string]Sight, len(s.pods[t]))
	for name, sight := range s.pods[t] {
		pods[name] = *sight
	}
	return pods
}

// Last is where a pod of a name was last, if it was the same workload's.
func (s *Sights) Last(t Target, owner types.UID, pod string) *Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sight := s.pods[t][pod]; sight != nil && sight.Last != nil && sight.Last.Owner == owner {
		return sight.Last
	}
	return nil
}

// Drop forgets the absent pods of a workload that are not expected back.
func (s *Sights) Drop(t Target, expected func(pod string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pods[t], func(pod string, sight *Sight) bool { return !sight.Alive() && !expected(pod) })
}

// Waiting are the workloads that have a pod which waits for a hostname that was injected.
func (s *Sights) Waiting(hostname string) []Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	var targets []Target
	for target, byName := range s.pods {
		for _, sight := range byName {
			if sight.Alive() && sight.Pod.stage == waiting && sight.Pod.Hostname == hostname {
				targets = append(targets, target)
				break
			}
		}
	}
	return targets
}

// Forget removes what was last seen before a time: by then it is recorded, or nobody wanted it.
func (s *Sights) Forget(before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pods, func(_ Target, byName map[string]*Sight) bool {
		maps.DeleteFunc(byName, func(_ string, sight *Sight) bool {
			return !sight.Alive() && sight.gone.Before(before)
		})
		return len(byName) == 0
	})
}

// A glance is what is needed of a pod. The informer keeps glances and not the pods: there may be a lot of pods.
type glance struct {
	metav1.ObjectMeta         // namespace, name, UID
	target            *Target // nil if it is of no concern
	seen              *Seen
}

// glanceAt makes the glance of a pod; of a pod that no workload of these kinds has, it keeps the name alone.
func glanceAt(pod *corev1.Pod, kinds Kinds) *glance {
	g := &glance{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
	target, owner := ownerTarget(pod)
	if owner == nil {
		return g
	}
	if _, ours := kinds.find(target.Kind); !ours {
		return g
	}
	annotations := maps.Clone(pod.Annotations)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	g.target = &target
	g.seen = &Seen{
		UID:             pod.UID,
		ResourceVersion: pod.ResourceVersion,
		Owner:           owner.UID,
		Created:         pod.CreationTimestamp.Time,
		Leaving:         pod.DeletionTimestamp != nil,
		Node:            pod.Spec.NodeName,
		Hostname:        injectedHostname(pod),
		Annotations:     annotations,
		stage:           stageOf(pod),
	}
	return g
}

// injectedHostname is the hostname that a pod waits for because it was injected; "" if that is its user's wish, or nobody's.
func injectedHostname(pod *corev1.Pod) string {
	if hostname := requiredOf(pod.Annotations)[corev1.LabelHostname]; hostname == pod.Spec.NodeSelector[corev1.LabelHostname] {
		return hostname
	}
	return ""
}

func stageOf(pod *corev1.Pod) stage {
	switch {
	case pod.Spec.NodeName == "":
		return waiting
	case isReady(pod):
		return ready
	case pod.Status.PodIP != "":
		return started
	}
	return assigned
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
