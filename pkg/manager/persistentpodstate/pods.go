package persistentpodstate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	// rememberedFor is how long a pod that has ended is remembered.
	rememberedFor = 15 * time.Minute
	// maxRemembered is the largest number of pods that are remembered. Beyond that the one that
	// was looked up least recently is forgotten: its successor has only what is recorded.
	maxRemembered = 10_000
)

// A workloadPod is the part of a workload's pod that the informer keeps.
type workloadPod struct {
	podKey
	UID             types.UID
	ResourceVersion string
	Owner           types.UID // UID of the workload that controls the pod
	Created         time.Time
	Terminating     bool
	Node            string            // "" while the pod is not scheduled
	Hostname        string            // the hostname that inject added to its node selector, "" if none
	Patience        lease.Window      // see patienceOf
	Object          string            // pps.AnnotationInjected
	Reason          string            // the start of annotationReason
	Annotations     map[string]string // see keptAnnotations
	TooLong         bool              // see keptAnnotations
	stage           stage
}

// A podKey identifies the pods of a workload that have the same name.
type podKey struct {
	target targetKey
	name   string
}

// stage is how far the start of a pod has progressed. A later stage has a higher value.
type stage int

const (
	waiting  stage = iota // not scheduled
	assigned              // scheduled to a node
	started               // has an address
	ready
)

// lastRun returns which of two successive pods with a name says where the next one should run: the
// later one if it had an address, or if it was scheduled and the former one had no address either.
// former is nil if there was none.
func lastRun(former, now *workloadPod) *workloadPod {
	if now.stage >= started || now.stage == assigned && (former == nil || former.stage == assigned) {
		return now
	}
	return former
}

// podEnded remembers a pod that was deleted, or that the workload does not control any more. The
// recorded status is not sufficient: a pod may be deleted before its state is recorded, and its
// successor may be created a moment later. Nothing is remembered of a pod that the workload is not
// expected to create again.
func (v *clusterView) podEnded(p *workloadPod) {
	workload, _ := v.Workload(p.target)
	if objects := v.Objects(p.target); workload != nil && len(objects) > 0 &&
		!isExpected(&objects[0].object, workload, p.name) {
		v.ended.Remove(p.podKey)
		return
	}
	if lastRun(v.remembered(p.podKey), p) == p {
		v.ended.Add(p.podKey, p, rememberedFor)
	}
}

func (v *clusterView) remembered(key podKey) *workloadPod {
	p, _ := v.ended.Get(key)
	last, _ := p.(*workloadPod)
	return last
}

// lastPod returns the last pod with a name that ran, nil if this replica has observed none, or if
// another workload than the one with the UID owner controlled it.
func (v *clusterView) lastPod(key podKey, owner types.UID) *workloadPod {
	last := v.remembered(key)
	if p, _ := v.pods.Get(key.target.Namespace + "/" + key.name); p != nil && p.target == key.target {
		last = lastRun(last, p)
	}
	if last == nil || last.Owner != owner {
		return nil
	}
	return last
}

// workloadPodOf returns the workloadPod of a pod. It returns nil if no workload of the given kinds
// controls the pod. named returns the keys of the annotations that are recorded of a workload's
// pods.
func workloadPodOf(pod *corev1.Pod, kinds kube.Kinds, named func(targetKey) []string) *workloadPod {
	target, owner := ownerTarget(pod)
	if owner.Name == "" || len(owner.Name) > kube.MaxName || len(owner.UID) > kube.MaxUID {
		return nil // the API server does not limit the texts of an owner reference
	}
	kind, ours := kinds.Find(target.Kind)
	if !ours {
		return nil
	}
	target.Kind = kind.GroupKind() // the other one is a part of the reference's text
	kept, tooLong := keptAnnotations(pod.Annotations, named(target))
	patience, _ := patienceOf(pod.Annotations) // the webhook has reported an error
	return &workloadPod{
		podKey:          podKey{target, pod.Name},
		UID:             pod.UID,
		ResourceVersion: pod.ResourceVersion,
		Owner:           owner.UID,
		Created:         pod.CreationTimestamp.Time,
		Terminating:     pod.DeletionTimestamp != nil,
		Node:            pod.Spec.NodeName,
		Hostname:        injectedHostname(pod),
		Patience:        patience,
		Object:          kube.Short(pod.Annotations[pps.AnnotationInjected], kube.MaxName),
		Reason:          kube.Cut(pod.Annotations[annotationReason], kube.MaxNote),
		Annotations:     kept,
		TooLong:         tooLong,
		stage:           stageOf(pod),
	}
}

// maxRecorded is how many bytes of annotations are recorded of a pod, at most. There are at most
// maxNames annotations.
const maxRecorded = 4 << 10

// keptAnnotations returns the annotations of a pod that may be recorded: all of them if there are
// at most maxNames with maxRecorded bytes, because a PersistentPodState may name others later, and
// otherwise the named ones. tooLong reports whether these are more: then none of them is recorded.
func keptAnnotations(all map[string]string, named []string) (kept map[string]string, tooLong bool) {
	if len(all) <= maxNames && bytesIn(all) <= maxRecorded {
		return all, false
	}
	if kept = control.Pick(all, named...); len(kept) > maxNames || bytesIn(kept) > maxRecorded {
		return nil, true
	}
	return kept, false
}

// bytesIn returns the length of all keys and values of a map.
func bytesIn(m map[string]string) (bytes int) {
	for key, value := range m {
		bytes += len(key) + len(value)
	}
	return bytes
}

// injectedHostname returns the hostname that inject added to the node selector of a pod. It returns
// "" if the node selector has no hostname, or if the user wrote it.
func injectedHostname(pod *corev1.Pod) string {
	hostname := pod.Spec.NodeSelector[corev1.LabelHostname]
	if hostname != requiredOf(pod.Annotations)[corev1.LabelHostname] {
		return ""
	}
	return hostname // not a part of the annotation, which may be long
}

// patienceOf returns how long the node of a pod may have been not ready before the pod does not
// require its hostname, according to annotationPatience: lease.Forever if the pod has none. An
// invalid value is ignored, and returned as an error.
func patienceOf(annotations map[string]string) (lease.Window, error) {
	value := annotations[annotationPatience]
	if value == "" {
		return lease.Forever, nil
	}
	patience, err := policy.ParsePatience(value)
	if err != nil {
		return lease.Forever, fmt.Errorf("annotation %s: %w; it waits forever", annotationPatience, err)
	}
	return patience, nil
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
