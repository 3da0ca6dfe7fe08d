package adopt

import (
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// The names that witnesses give become keys of the store, parts of paths and
// words on a terminal: only those that CNI and Kubernetes accept are believed.

// isPod reports whether Kubernetes accepts both names.
func isPod(namespace, name string) bool { return lease.IsNamespace(namespace) && lease.IsPodName(name) }

// isUID reports whether s is a UID that was written for one.
func isUID(s string) bool { return s != "" && s != none && lease.IsUID(s) }

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
