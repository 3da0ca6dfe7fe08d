package adopt

import (
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
)

// The names that witnesses give become keys of the store, parts of paths and
// words on a terminal: only those that CNI and Kubernetes accept are believed.

// isPod reports whether Kubernetes accepts both: an RFC 1123 label and an RFC
// 1123 subdomain.
func isPod(namespace, name string) bool {
	if len(namespace) > 63 || !isLabel(namespace) || len(name) > 253 {
		return false
	}
	for part := range strings.SplitSeq(name, ".") {
		if !isLabel(part) {
			return false
		}
	}
	return true
}

func isLabel(s string) bool {
	return s != "" && s[0] != '-' && s[len(s)-1] != '-' &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// isUID is generous: a static pod's UID is a hash, and only equality counts.
func isUID(s string) bool {
	return s != "" && s != none && len(s) <= 128 &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:.") == ""
}

func isContainerID(s string) bool { return len(s) <= 255 && utils.ValidateContainerID(s) == nil }

func isIfName(s string) bool { return utils.ValidateInterfaceName(s) == nil && isPrintable(s) }

func isNetwork(s string) bool { return len(s) <= 255 && utils.ValidateNetworkName(s) == nil }

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// parseAddr reads an address as host-local writes it, in the form that leases
// have: IPv4 plain, no zone.
func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	a = a.Unmap()
	return a, err == nil && a.Zone() == "" && !a.IsUnspecified()
}

// parseCIDR reads "10.0.0.5/16", and "10.0.0.5" too.
func parseCIDR(s string) (netip.Addr, bool) {
	addr, _, _ := strings.Cut(s, "/")
	return parseAddr(addr)
}
