package topology

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// Kinds are the kinds of workload whose pods have names that return, `<workload>-<ordinal>`.
type Kinds []schema.GroupVersionKind

// builtIn are Kubernetes' own StatefulSet and Kruise's, which need no flag.
var builtIn = Kinds{
	{Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Group: "apps.kruise.io", Version: "v1beta1", Kind: "StatefulSet"},
}

// ParseKinds reads --pps-kinds: group/version/Kind, joined by commas, beside those that need no flag.
func ParseKinds(s string) (Kinds, error) {
	kinds := slices.Clone(builtIn)
	if s == "" {
		return kinds, nil
	}
	for word := range strings.SplitSeq(s, ",") {
		parts := strings.Split(word, "/")
		if len(parts) != 3 || len(validation.IsDNS1123Subdomain(parts[0])) > 0 ||
			slices.ContainsFunc(parts[1:], func(s string) bool { return len(validation.IsDNS1035Label(strings.ToLower(s))) > 0 }) {
			return nil, fmt.Errorf("%q is not a kind; want group/version/Kind, as example.com/v1/Database", word)
		}
		kind := schema.GroupVersionKind{Group: parts[0], Version: parts[1], Kind: parts[2]}
		if _, known := kinds.find(kind.GroupKind()); !known {
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// find is the kind in the version in which it is watched.
func (k Kinds) find(kind schema.GroupKind) (schema.GroupVersionKind, bool) {
	i := slices.IndexFunc(k, func(known schema.GroupVersionKind) bool { return known.GroupKind() == kind })
	if i < 0 {
		return schema.GroupVersionKind{}, false
	}
	return k[i], true
}

// String names the kinds for people.
func (k Kinds) String() string {
	var words []string
	for _, kind := range k {
		words = append(words, kind.Kind+" of "+kind.Group)
	}
	return strings.Join(words, ", ")
}

// celOfPods is the condition under which a pod belongs to one of the kinds, for the API server to decide.
func (k Kinds) celOfPods() string {
	var any []string
	for _, kind := range k {
		any = append(any, fmt.Sprintf("o.kind == '%s' && o.apiVersion.startsWith('%s/')", kind.Kind, kind.Group))
	}
	return "has(object.metadata.name) && has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, " +
		"has(o.controller) && o.controller && (" + strings.Join(any, " || ") + "))"
}

// Target is a workload. Its version does not count: what is stored once may be named in several.
type Target struct {
	Kind            schema.GroupKind
	Namespace, Name string
}

func (t Target) String() string { return t.Kind.String() + " " + t.Namespace + "/" + t.Name }

// targetOf is the workload that an object is about.
func targetOf(o *pps.PersistentPodState) Target {
	return Target{kindOf(o.Spec.TargetRef.APIVersion, o.Spec.TargetRef.Kind), o.Namespace, o.Spec.TargetRef.Name}
}

// ownerTarget is the workload that controls an object, and its UID; false if none does.
func ownerTarget(o metav1.Object) (Target, *metav1.OwnerReference) {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil {
		return Target{}, nil
	}
	return Target{kindOf(owner.APIVersion, owner.Kind), o.GetNamespace(), owner.Name}, owner
}

func kindOf(apiVersion, kind string) schema.GroupKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
}
