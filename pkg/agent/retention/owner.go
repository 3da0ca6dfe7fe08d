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
func numberedSet(kind, group string) (schema.GroupVersionKind, bool) {
	i := slices.IndexFunc(kube.StatefulSets, func(k schema.GroupVersionKind) bool {
		return k.Kind == kind && k.Group == group
	})
	if i < 0 {
		return schema.GroupVersionKind{}, false
	}
	return kube.StatefulSets[i], true
}

// ownerText returns the text with which a lease stores the controller of its pod, such as
// "StatefulSet.apps/db". It returns "" for a controller for which nothing shows whether it will use
// the pod's name again. An address that is held forever for such a pod is released by a user, or
// after ForeverLimit.
func ownerText(o Owner) string {
	if _, ok := numberedSet(o.Kind, o.Group); !ok {
		return ""
	}
	return o.Kind + "." + o.Group + "/" + o.Name
}

// parseOwner parses a text that ownerText returned for a pod. It returns the path of the
// StatefulSet in the API, and the pod's ordinal. It reports false for any other text, and if the
// StatefulSet does not create a pod of that name.
func parseOwner(text string, pod kube.Name) (path string, ordinal int64, ok bool) {
	kindGroup, name, _ := strings.Cut(text, "/")
	kindName, group, _ := strings.Cut(kindGroup, ".")
	kind, isSet := numberedSet(kindName, group)
	ordinal, isOf := kube.OrdinalIn(name, pod.Name)
	path = fmt.Sprintf("/apis/%s/%s/namespaces/%s/statefulsets/%s", group, kind.Version, pod.Namespace, name)
	return path, ordinal, isSet && isOf && name != ""
}
