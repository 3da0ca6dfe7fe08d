package v1alpha1

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// maxName is the longest name of an object: that of an RFC 1123 subdomain.
const maxName = 253

// ObjectName returns the name of the IPReservation of a pod and a node: "<pod>-<the first 8 hex
// digits of the node's UID>". The API server makes UIDs. If the name is too long, the end of the
// pod's name is replaced by the Hash of all of it.
func ObjectName(pod, nodeUID string) string {
	suffix := "-" + nodeUID[:min(8, len(nodeUID))]
	if len(pod)+len(suffix) > maxName {
		hash := "-" + Hash(pod)
		pod = strings.TrimRight(pod[:maxName-len(suffix)-len(hash)], ".-") + hash
	}
	return pod + suffix
}

// PodOf returns the pod in the name of an IPReservation. It returns another text if the pod's name
// is so long that ObjectName has replaced its end.
func PodOf(object string) string { return object[:max(0, len(object)-len("-5f1c9a02"))] }

// Hash returns a label value for a name that may be longer than the 63 characters of a label value.
// Two names may have the same hash, so readers compare the name as well.
func Hash(name string) string {
	h := fnv.New64a()
	h.Write([]byte(name))
	return fmt.Sprintf("%016x", h.Sum64())
}
