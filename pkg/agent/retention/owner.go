package retention

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
)

// numberedSet returns the kind with the version to read, and reports whether its pods have
// ordinals.
func numberedSet(kind, group string) (schema.GroupVersionKind, bool) {
	i := slices.IndexFunc(ordinals.Kinds, func(k schema.GroupVersionKind) bool {
		return k.Kind == kind && k.Group == group
	})
	if i < 0 {
		return schema.GroupVersionKind{}, false
	}
	return ordinals.Kinds[i], true
}

// ownerText returns how a lease stores the controller that recreates its pod, such as
// "StatefulSet.apps/db". It is empty for controllers of which it cannot be determined whether they
// will use the pod's name again: a user must release what such a pod keeps forever.
func ownerText(o podcache.Owner) string {
	if _, ok := numberedSet(o.Kind, o.Group); !ok {
		return ""
	}
	return o.Kind + "." + o.Group + "/" + o.Name
}

// Set identifies the StatefulSet in the text that OwnerText returned.
type Set struct{ Group, Version, Name string }

// ParseOwner parses a text that OwnerText returned, and the ordinal in the name of the set's pod.
// It reports false for anything else.
func ParseOwner(text, pod string) (set Set, ordinal int64, ok bool) {
	kindGroup, name, _ := strings.Cut(text, "/")
	kindName, group, _ := strings.Cut(kindGroup, ".")
	kind, isSet := numberedSet(kindName, group)
	ordinal, isOf := ordinals.InName(name, pod)
	return Set{group, kind.Version, name}, ordinal, isSet && isOf && name != ""
}
