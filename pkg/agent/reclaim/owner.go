package reclaim

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

type set struct{ retention.Set }

func (s set) path(namespace string) string {
	return fmt.Sprintf("/apis/%s/%s/namespaces/%s/statefulsets/%s", s.Group, s.Version, namespace, s.Name)
}

// ownerOf returns the StatefulSet and the ordinal of a pod for which an address is held without
// end.
func ownerOf(leases []lease.Lease, pod string) (set, int64, bool) {
	for _, l := range leases {
		if s, ordinal, ok := retention.ParseOwner(l.Owner, pod); ok && l.Hold == lease.Forever {
			return set{s}, ordinal, true
		}
	}
	return set{}, 0, false
}

// setState is the result of reading a StatefulSet: an error, or the ordinals that it has according
// to its spec. One that was deleted has none.
type setState struct {
	err      error
	ordinals ordinals.Set
}

func (h *Holds) getSet(ctx context.Context, path string) setState {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	result := h.Clients.Any.Get().AbsPath(path).Do(ctx)
	err := result.Error() // Raw alone would not decode the reason
	switch {
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return setState{} // the object is missing, its kind is not
	case err != nil:
		return setState{err: err}
	}
	raw, err := result.Raw()
	if err != nil {
		return setState{err: err}
	}
	return parseSet(raw)
}

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
	wanted, err := ordinals.Of(object.Spec, 1)
	return setState{err, wanted}
}
