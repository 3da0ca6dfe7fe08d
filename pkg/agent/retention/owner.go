package retention

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// controllingSet returns the StatefulSet that controls a pod, in the form "StatefulSet.apps/db",
// and its UID. It returns "" for a controller for which nothing shows whether it will use the pod's
// name again: an address that is held forever for such a pod is released by a user, or after
// ForeverLimit. The API server does not limit the texts of an owner reference, so that
// controllingSet ignores one that is longer than any object's.
func controllingSet(p *corev1.Pod) (owner string, uid types.UID) {
	kind, c := kube.ControllerOf(p)
	if _, isSet := kube.StatefulSets.Find(kind); !isSet || len(c.Name) > kube.MaxName || len(c.UID) > kube.MaxUID {
		return "", ""
	}
	return kind.Kind + "." + kind.Group + "/" + c.Name, c.UID
}

// ParseOwner parses the owner in a lease of a pod (Pod.Owner). It returns the path of the
// StatefulSet in the API, and the pod's ordinal. It reports false for any other text, and if the
// StatefulSet does not create a pod of that name.
func ParseOwner(text string, pod kube.Name) (path string, ordinal int64, ok bool) {
	kindGroup, name, _ := strings.Cut(text, "/")
	kindName, group, _ := strings.Cut(kindGroup, ".")
	kind, isSet := kube.StatefulSets.Find(schema.GroupKind{Group: group, Kind: kindName})
	ordinal, isOf := kube.OrdinalIn(name, pod.Name)
	path = fmt.Sprintf("/apis/%s/%s/namespaces/%s/statefulsets/%s", group, kind.Version, pod.Namespace, name)
	return path, ordinal, isSet && isOf && name != ""
}
