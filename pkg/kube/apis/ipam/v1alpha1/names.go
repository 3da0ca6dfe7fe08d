package v1alpha1

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// maxName is the longest name of an object (RFC 1123 subdomain).
const maxName = 253

// ObjectName is the name of the one object of a pod and a node: "<pod>-<8 hex digits of the node's UID>". The end of a pod
// name that leaves no room for that gives way to its hash.
func ObjectName(pod, nodeUID string) string {
	suffix := "-" + uidDigits(nodeUID)
	if len(pod)+len(suffix) > maxName {
		hash := "-" + Hash(pod)
		pod = strings.TrimRight(pod[:maxName-len(suffix)-len(hash)], ".-") + hash
	}
	return pod + suffix
}

// uidDigits are the first 8 hexadecimal digits of a UID; those of its hash where it has other letters.
func uidDigits(uid string) string {
	if len(uid) >= 8 && strings.Trim(uid[:8], "0123456789abcdef") == "" {
		return uid[:8]
	}
	return Hash(uid)[:8]
}

// Hash makes a label's value of a name that may be longer than the 63 characters that a label takes: the values of
// LabelNodeHash and LabelPodHash. Two names may share one, so readers compare the name as well.
func Hash(name string) string {
	h := fnv.New64a()
	h.Write([]byte(name))
	return fmt.Sprintf("%016x", h.Sum64())
}
