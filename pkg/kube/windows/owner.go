package windows

import (
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
)

// setKind is the kind whose pods are numbered, in the groups that have it.
const setKind = "StatefulSet"

var setGroups = map[string]string{"apps": "v1", "apps.kruise.io": "v1beta1"}

// OwnerText is how a lease remembers who makes its pod again: "StatefulSet.apps/db". It is empty for owners of whom it
// cannot be known when they give up a name: what such a pod keeps forever is released by hand.
func OwnerText(o nodepods.Owner) string {
	if o.Kind != setKind || setGroups[o.Group] == "" {
		return ""
	}
	return setKind + "." + o.Group + "/" + o.Name
}

// Set is a StatefulSet that a lease remembers.
type Set struct{ Group, Version, Name string }

// ParseOwner reads OwnerText and the pod's number in the set; ok is false for anything else.
func ParseOwner(text, pod string) (set Set, ordinal int64, ok bool) {
	kind, name, _ := strings.Cut(text, "/")
	group, isSet := strings.CutPrefix(kind, setKind+".")
	ordinal, isOf := ordinals.InName(name, pod)
	set = Set{group, setGroups[group], name}
	return set, ordinal, isSet && isOf && name != "" && set.Version != ""
}
