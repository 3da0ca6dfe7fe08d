package retention

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

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
