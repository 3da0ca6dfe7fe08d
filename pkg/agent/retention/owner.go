package retention

import (
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
)

// setKind is the kind whose pods have ordinals, setGroups the API groups and versions that have it.
const setKind = "StatefulSet"

var setGroups = map[string]string{"apps": "v1", "apps.kruise.io": "v1beta1"}

// OwnerText returns how a lease stores the controller that recreates its pod, such as
// "StatefulSet.apps/db". It is empty for controllers of which it cannot be determined whether they
// will use the pod's name again: a user must release what such a pod keeps forever.
func OwnerText(o podcache.Owner) string {
	if o.Kind != setKind || setGroups[o.Group] == "" {
		return ""
	}
	return setKind + "." + o.Group + "/" + o.Name
}

// Set identifies the StatefulSet in the text that OwnerText returned.
type Set struct{ Group, Version, Name string }

// ParseOwner parses a text that OwnerText returned, and the ordinal in the name of the set's pod.
// It reports false for anything else.
func ParseOwner(text, pod string) (set Set, ordinal int64, ok bool) {
	kind, name, _ := strings.Cut(text, "/")
	group, isSet := strings.CutPrefix(kind, setKind+".")
	ordinal, isOf := ordinals.InName(name, pod)
	set = Set{group, setGroups[group], name}
	return set, ordinal, isSet && isOf && name != "" && set.Version != ""
}
