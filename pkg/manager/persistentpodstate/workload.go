package persistentpodstate

import (
	"maps"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// workload has the fields of a StatefulSet, or of a workload of a similar kind, that this package
// needs.
type workload struct {
	targetKey
	APIVersion  string
	UID         types.UID
	Created     time.Time
	Terminating bool
	Annotations map[string]string // those that ask for a PersistentPodState, nil if none is asked for
	// TooLong reports whether the Annotations were longer than maxListBytes, so that the workload
	// has none but pps.AnnotationGenerate.
	TooLong  bool
	Ordinals kube.Ordinals
}

// maxListBytes is how many bytes the annotations of a workload that list labels and annotations
// have, at most, all together. That is more than validateSpec allows.
const maxListBytes = 2 * maxNameBytes

// workloadOf returns the workload for an object of any kind. If the object has no replicas in its
// spec, the workload has all ordinals.
func workloadOf(u *unstructured.Unstructured) *workload {
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	set, _ := kube.OrdinalsOf(spec, math.MaxInt64)
	annotations, tooLong := askedIn(u.GetAnnotations())
	return &workload{
		targetKey:   targetKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()},
		APIVersion:  u.GetAPIVersion(),
		UID:         u.GetUID(),
		Created:     u.GetCreationTimestamp().Time,
		Terminating: u.GetDeletionTimestamp() != nil,
		Annotations: annotations,
		TooLong:     tooLong,
		Ordinals:    set,
	}
}

// ref returns a reference to the workload for Events.
func (w *workload) ref() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: w.APIVersion, Kind: w.Kind.Kind, Namespace: w.Namespace, Name: w.Name,
		UID: w.UID}
}

// askedIn returns the annotations of a workload that ask for a PersistentPodState, and whether
// there would be more, but they are too long.
func askedIn(all map[string]string) (annotations map[string]string, tooLong bool) {
	if all[pps.AnnotationGenerate] != "true" {
		return nil, false
	}
	lists := control.Pick(all, pps.AnnotationRequiredTopology, pps.AnnotationPreferredTopology,
		pps.AnnotationPodAnnotations)
	annotations = map[string]string{pps.AnnotationGenerate: "true"}
	if bytesIn(lists) > maxListBytes {
		return annotations, true
	}
	maps.Copy(annotations, lists)
	return annotations, false
}

// bytesIn returns the length of all keys and values of a map.
func bytesIn(m map[string]string) (bytes int) {
	for key, value := range m {
		bytes += len(key) + len(value)
	}
	return bytes
}
