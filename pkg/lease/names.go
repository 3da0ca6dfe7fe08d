package lease

import "strings"

// Names of pods come from CNI_ARGS. They become keys of the store, parts of paths and output on a
// terminal. Therefore only names that Kubernetes accepts may become part of a lease.

// IsNamespace reports whether s is a valid name of a Kubernetes namespace (an RFC 1123 label).
func IsNamespace(s string) bool { return len(s) <= 63 && isLabel(s) }

// IsPodName reports whether s is a valid name of a pod (an RFC 1123 subdomain; Kubernetes does not
// limit the length of its labels).
func IsPodName(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label) {
			return false
		}
	}
	return true
}

// IsReserveAs reports whether s is a valid reservation name (an RFC 1123 label).
func IsReserveAs(s string) bool { return len(s) <= 63 && isLabel(s) }

func isLabel(s string) bool {
	return s != "" && s[0] != '-' && s[len(s)-1] != '-' &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// IsUID reports whether s can be stored as the UID of a pod; "" can. It accepts more than UUIDs,
// because the UID of a static pod is a hash; UIDs are only compared for equality.
func IsUID(s string) bool {
	return len(s) <= 128 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:.") == ""
}

// MaxContainerID is the greatest length of a container ID in bytes. The CNI specification has no
// limit, and containerd's clients make IDs of two names and a hash. This one keeps keys of the
// store below bbolt's limit, and far above what fits into the name of libcni's cache file.
const MaxContainerID = 4096
