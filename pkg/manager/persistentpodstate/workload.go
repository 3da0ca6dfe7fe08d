package persistentpodstate

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
)

// workload has the fields of a StatefulSet, or of a workload of a similar kind, that this package
// needs.
type workload struct {
	targetKey
	APIVersion  string
	UID         types.UID
	Created     time.Time
	Terminating bool
	Annotations map[string]string
	Ordinals    ordinals.Set
}

// workloadOf returns the workload for an object of any kind. If the object has no replicas in its
// spec, the workload has all ordinals.
func workloadOf(u *unstructured.Unstructured) *workload {
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	set, _ := ordinals.Of(spec, math.MaxInt64)
	return &workload{
		targetKey:   targetKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()},
		APIVersion:  u.GetAPIVersion(),
		UID:         u.GetUID(),
		Created:     u.GetCreationTimestamp().Time,
		Terminating: u.GetDeletionTimestamp() != nil,
		Annotations: u.GetAnnotations(),
		Ordinals:    set,
	}
}
