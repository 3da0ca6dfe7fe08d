package host

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// AddressesIn returns all addresses of all interfaces in the network namespace, also of interfaces
// that are down and addresses that are tentative, and on a point-to-point link those of both ends.
//
// It returns ErrNetnsGone if the path no longer leads to the namespace. Any other error means that
// the addresses are unknown.
func (h *Host) AddressesIn(n lease.Netns) (addrs []netip.Addr, err error) {
	err = h.RunInNetns(n, func() error {
		list, err := complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("failed to list the addresses in network namespace %s: %w", n.Path, err)
		}
		for _, a := range list {
			for _, ip := range []*net.IPNet{a.IPNet, a.Peer} {
				if ip == nil {
					continue
				}
				if addr, ok := netip.AddrFromSlice(ip.IP); ok {
					addrs = append(addrs, addr)
				}
			}
		}
		return nil
	})
	return addrs, err
}
