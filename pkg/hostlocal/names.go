package hostlocal

import (
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// The names that CNI and Kubernetes accept. Names that are read from files of others become keys of
// the store, parts of paths and text on a terminal, so that all others are rejected.

// IsPod reports whether Kubernetes accepts both names.
func IsPod(namespace, name string) bool { return lease.IsNamespace(namespace) && lease.IsPodName(name) }

// IsUID reports whether s is the UID of a pod. "" and "-" stand for none.
func IsUID(s string) bool { return s != "" && s != "-" && lease.IsUID(s) }

// IsContainerID reports whether s is a container ID that leasehold serves.
func IsContainerID(s string) bool {
	return len(s) <= lease.MaxContainerID && utils.ValidateContainerID(s) == nil
}

// IsIfName reports whether s is the name of an interface, in printable ASCII.
func IsIfName(s string) bool {
	return utils.ValidateInterfaceName(s) == nil &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// IsNetwork reports whether s is the name of a network, of at most 255 bytes.
func IsNetwork(s string) bool { return len(s) <= 255 && utils.ValidateNetworkName(s) == nil }

// ParseAddr reads an address as host-local writes it, in the form that leases have: IPv4 is not
// mapped, IPv6 has no zone. It reports false for anything else.
func ParseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	a = a.Unmap()
	return a, err == nil && a.Zone() == "" && !a.IsUnspecified()
}

// ParseCIDR is ParseAddr for "10.0.0.5/16", and for "10.0.0.5".
func ParseCIDR(s string) (netip.Addr, bool) {
	addr, _, _ := strings.Cut(s, "/")
	return ParseAddr(addr)
}
