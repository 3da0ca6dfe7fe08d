package ipam

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// returned updates the neighbours of a pod that has returned to addresses, which they know with
// another hardware address: it removes the entries of this node, and asks the agent for an
// announcement. Errors are only logged, because the pod has its addresses without either.
func (s *Service) returned(who lease.Holder, kept []netip.Addr) {
	if len(kept) == 0 {
		return
	}
	if err := s.Host.ForgetNeighbours(kept); err != nil {
		s.Warnf("%v", err)
	}
	if err := s.Store.Announce(who); err != nil {
		s.Warnf("%v", err)
	}
}

// KeepMAC returns the hardware address for an attachment's interface: that of its leases, or else
// its present one, has, which is then recorded in the leases. With fixed it is always the present
// one, because a user has chosen it.
//
// Only leases of the attachment with a key are used, and only those of addresses that the interface
// has. ok is false if there is none.
func (s *Service) KeepMAC(ctx context.Context, who lease.Attachment, addrs []netip.Addr, has net.HardwareAddr,
	fixed bool) (mac net.HardwareAddr, ok bool, err error) {
	err = s.Update(ctx, transact.Scope{}, func(c *transact.Call) error {
		mac, ok = has, false
		leases, err := c.Retained(who)
		if err != nil {
			return err
		}
		leases = slices.DeleteFunc(leases, func(l lease.Lease) bool { return !slices.Contains(addrs, l.Address) })
		if ok = len(leases) > 0; !ok {
			return nil
		}
		if !fixed {
			mac = macOf(leases, has)
		}
		return c.SetMAC(leases, mac)
	})
	return mac, ok, err
}

// macOf returns the first usable hardware address of the leases, otherwise if there is none.
func macOf(leases []lease.Lease, otherwise net.HardwareAddr) net.HardwareAddr {
	for _, l := range leases {
		if mac, err := net.ParseMAC(l.MAC); err == nil && IsUsable(mac) {
			return mac
		}
	}
	return otherwise
}

// IsUsable reports whether an Ethernet interface can have the hardware address: it has six bytes,
// is not zero and not a multicast address.
func IsUsable(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0]&1 == 0 && !slices.Equal(mac, make(net.HardwareAddr, 6))
}
