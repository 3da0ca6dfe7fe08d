package topology

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
)

// Workload is what must be known of a StatefulSet, or of a kind that is like one.
type Workload struct {
	Target
	APIVersion  string
	UID         types.UID
	Created     time.Time
	Leaving     bool // being deleted
	Annotations map[string]string
	Ordinals    ordinals.Set
}

// workloadOf reads a workload of any kind. One that does not say how many pods it has may have any.
func workloadOf(u *unstructured.Unstructured) *Workload {
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	numbers, _ := ordinals.Of(spec, math.MaxInt64)
	return &Workload{
		Target:      Target{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()},
		APIVersion:  u.GetAPIVersion(),
		UID:         u.GetUID(),
		Created:     u.GetCreationTimestamp().Time,
		Leaving:     u.GetDeletionTimestamp() != nil,
		Annotations: u.GetAnnotations(),
		Ordinals:    numbers,
	}
}
