package retention

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// setOf returns the path of the StatefulSet of a pod, and the ordinal in the pod's name. leases are
// the holds of the pod. setOf reports false if none of them is held forever for a pod of a
// StatefulSet.
func setOf(leases []lease.Lease, pod kube.Name) (path string, ordinal int64, ok bool) {
	for _, l := range leases {
		if path, ordinal, ok := parseOwner(l.Owner, pod); ok && l.Hold == lease.Forever {
			return path, ordinal, true
		}
	}
	return "", 0, false
}

// setState is the result of reading a StatefulSet: either an error, or the ordinals of its pods
// according to its spec. A StatefulSet that does not exist, or is being deleted, has no ordinals.
type setState struct {
	err      error
	ordinals kube.Ordinals
}

// getSet reads a StatefulSet from the API server. Any client serves for the absolute path.
func (h *Holds) getSet(ctx context.Context, path string) setState {
	result := h.Clients.IPAM.Get().Timeout(kube.RequestTimeout).AbsPath(path).Do(ctx)
	err := result.Error() // Raw would return this error without the decoded Status
	switch {
	case apierrors.IsNotFound(err) && !kube.IsNotServed(err):
		return setState{} // the API server serves the resource, and the object does not exist
	case err != nil:
		return setState{err: err}
	}
	raw, err := result.Raw()
	if err != nil {
		return setState{err: err}
	}
	return parseSet(raw)
}

// parseSet returns the state of a StatefulSet from its JSON. An invalid spec is an error.
func parseSet(raw []byte) setState {
	var object struct {
		Metadata struct {
			DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return setState{err: err}
	}
	if object.Metadata.DeletionTimestamp != nil {
		return setState{}
	}
	// A StatefulSet without spec.replicas has one replica.
	wanted, err := kube.OrdinalsOf(object.Spec, 1)
	return setState{err, wanted}
}
