package persistentpodstate

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// parseKinds parses the value of --pps-kinds, which is a list of group/version/Kind separated by
// commas. It returns kube.StatefulSets and the parsed kinds.
func parseKinds(s string) (kube.Kinds, error) {
	kinds := slices.Clone(kube.StatefulSets)
	if s == "" {
		return kinds, nil
	}
	for element := range strings.SplitSeq(s, ",") {
		parts := strings.Split(element, "/")
		if len(parts) != 3 || len(validation.IsDNS1123Subdomain(parts[0])) > 0 ||
			slices.ContainsFunc(parts[1:],
				func(s string) bool { return len(validation.IsDNS1035Label(strings.ToLower(s))) > 0 }) {
			return nil, fmt.Errorf("%q is not a kind; want group/version/Kind, such as example.com/v1/Database",
				element)
		}
		kind := schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]}
		if _, known := kinds.Find(kind.GroupKind()); !known {
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// kindNames formats kinds for messages.
func kindNames(kinds kube.Kinds) string {
	var names []string
	for _, kind := range kinds {
		names = append(names, kind.Kind+" of "+kind.Group)
	}
	return strings.Join(names, ", ")
}

// targetKey identifies a workload. It has no API version, because references to one object may use
// different versions.
type targetKey struct {
	Kind            schema.GroupKind
	Namespace, Name string
}

func (t targetKey) String() string { return t.Kind.String() + " " + t.Namespace + "/" + t.Name }

// targetOf returns the target of a PersistentPodState: the workload whose pods it applies to.
func targetOf(o *pps.PersistentPodState) targetKey {
	t := o.Spec.TargetRef
	return targetKey{schema.FromAPIVersionAndKind(t.APIVersion, t.Kind).GroupKind(), o.Namespace, t.Name}
}

// ownerTarget returns the key of the workload that controls an object, and the owner reference.
// Both lack a name if there is none.
func ownerTarget(o metav1.Object) (targetKey, metav1.OwnerReference) {
	kind, owner := kube.ControllerOf(o)
	return targetKey{kind, o.GetNamespace(), owner.Name}, owner
}
