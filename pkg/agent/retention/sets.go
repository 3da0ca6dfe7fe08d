package retention

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

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

// readSet reads a StatefulSet from the API server, and returns the ordinals of its pods according
// to its spec. One that does not exist, or is being deleted, has none. An invalid spec is an error.
// Any client serves for the absolute path.
func (h *Holds) readSet(ctx context.Context, path string) (none kube.Ordinals, err error) {
	result := h.Clients.IPAM.Get().Timeout(kube.RequestTimeout).AbsPath(path).Do(ctx)
	err = result.Error() // Raw would return this error without the decoded Status
	if kube.IsGone(err) {
		return none, nil // the API server serves the resource, and the object does not exist
	}
	raw, rawErr := result.Raw()
	if err = cmp.Or(err, rawErr); err != nil {
		return none, err
	}
	return ordinalsIn(raw)
}

// ordinalsIn returns the ordinals of the pods of a StatefulSet in JSON.
func ordinalsIn(raw []byte) (none kube.Ordinals, err error) {
	var object struct {
		Metadata struct {
			DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil || object.Metadata.DeletionTimestamp != nil {
		return none, err
	}
	return kube.OrdinalsOf(object.Spec, 1) // without spec.replicas, it has one replica
}

// numberedSet returns the kind with the version to read. It reports false if the pods of the kind
// have no ordinals.
func numberedSet(kind schema.GroupKind) (schema.GroupVersionKind, bool) {
	i := slices.IndexFunc(kube.StatefulSets, func(k schema.GroupVersionKind) bool { return k.GroupKind() == kind })
	if i < 0 {
		return schema.GroupVersionKind{}, false
	}
	return kube.StatefulSets[i], true
}

// parseOwner parses the owner in a lease of a pod (Pod.Owner). It returns the path of the
// StatefulSet in the API, and the pod's ordinal. It reports false for any other text, and if the
// StatefulSet does not create a pod of that name.
func parseOwner(text string, pod kube.Name) (path string, ordinal int64, ok bool) {
	kindGroup, name, _ := strings.Cut(text, "/")
	kindName, group, _ := strings.Cut(kindGroup, ".")
	kind, isSet := numberedSet(schema.GroupKind{Group: group, Kind: kindName})
	ordinal, isOf := kube.OrdinalIn(name, pod.Name)
	path = fmt.Sprintf("/apis/%s/%s/namespaces/%s/statefulsets/%s", group, kind.Version, pod.Namespace, name)
	return path, ordinal, isSet && isOf && name != ""
}
