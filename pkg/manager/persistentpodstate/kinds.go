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

// kindList is a list of the kinds of workload that a PersistentPodState may have as its target.
// Their pods are named `<workload>-<ordinal>`, so that a recreated pod keeps its name.
type kindList []schema.GroupVersionKind

// builtIn is the part of every kindList that needs no flag.
var builtIn = kindList(kube.StatefulSets)

// parseKinds parses the value of --pps-kinds, which is a list of group/version/Kind separated by
// commas. It returns builtIn and the parsed kinds.
func parseKinds(s string) (kindList, error) {
	kinds := slices.Clone(builtIn)
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
		if _, known := kinds.find(kind.GroupKind()); !known {
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// find returns the element of the list with the given group and kind. The version of the element is
// the one that the informer watches. find reports false if the list has no such element.
func (k kindList) find(kind schema.GroupKind) (schema.GroupVersionKind, bool) {
	i := slices.IndexFunc(k, func(known schema.GroupVersionKind) bool { return known.GroupKind() == kind })
	if i < 0 {
		return schema.GroupVersionKind{}, false
	}
	return k[i], true
}

// String formats the kinds for messages.
func (k kindList) String() string {
	var names []string
	for _, kind := range k {
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
	return targetKey{kindOf(o.Spec.TargetRef.APIVersion, o.Spec.TargetRef.Kind), o.Namespace, o.Spec.TargetRef.Name}
}

// ownerTarget returns the key of the workload that controls an object, and the owner reference.
// Without a controller, it returns the zero key and nil.
func ownerTarget(o metav1.Object) (targetKey, *metav1.OwnerReference) {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil {
		return targetKey{}, nil
	}
	return targetKey{kindOf(owner.APIVersion, owner.Kind), o.GetNamespace(), owner.Name}, owner
}

func kindOf(apiVersion, kind string) schema.GroupKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
}
