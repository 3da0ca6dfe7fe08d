package holds

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
	"github.com/leasehold-cni/leasehold/pkg/kube/windows"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

type set struct{ windows.Set }

func (s set) path(namespace string) string {
	return fmt.Sprintf("/apis/%s/%s/namespaces/%s/statefulsets/%s", s.Group, s.Version, namespace, s.Name)
}

// endlessOf returns the StatefulSet and the number of a pod for which something is held without end.
func endlessOf(leases []lease.Lease, pod string) (set, int64, bool) {
	for _, l := range leases {
		if s, ordinal, ok := windows.ParseOwner(l.Owner, pod); ok && l.Hold == lease.Forever {
			return set{s}, ordinal, true
		}
	}
	return set{}, 0, false
}

// answer is what the API says of a StatefulSet: an error, or which pods it wants, now or as soon as it comes to them. One
// that is gone wants none.
type answer struct {
	err   error
	wants ordinals.Set
}

func (h *Holds) ask(ctx context.Context, path string) answer {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	result := h.Clients.Any.Get().AbsPath(path).Do(ctx)
	err := result.Error() // Raw alone would not read the server's reason
	switch {
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return answer{} // it is gone, and its kind is not
	case err != nil:
		return answer{err: err}
	}
	raw, err := result.Raw()
	if err != nil {
		return answer{err: err}
	}
	return parseSet(raw)
}

func parseSet(raw []byte) answer {
	var object struct {
		Metadata struct {
			DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return answer{err: err}
	}
	if object.Metadata.DeletionTimestamp != nil {
		return answer{}
	}
	wants, err := ordinals.Of(object.Spec, 1)
	return answer{err, wants}
}
