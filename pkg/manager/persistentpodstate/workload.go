package persistentpodstate

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
)

// workload is the part of a StatefulSet, or of a similar kind, that is needed.
type workload struct {
	targetKey
	APIVersion  string
	UID         types.UID
	Created     time.Time
	Terminating bool
	Annotations map[string]string
	Ordinals    ordinals.Set
}

// workloadOf returns the workload of an object of any kind. Without replicas in its spec it may
// have any ordinal.
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
