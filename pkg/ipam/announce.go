package ipam

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// returned is for a pod that has come back to addresses: whoever talked to it
// before knows them with another hardware address. What this node believes is
// forgotten, and whoever announces on this node is told. The pod has its
// addresses without either, so nothing here fails an ADD.
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

// KeepMAC returns the hardware address that an attachment's interface must have,
// whose own is has now: that of its leases, if they have one, else its own, which
// they keep from now on. With fixed its own stands: somebody has chosen it.
//
// Only leases that are the attachment's own count, of addresses that its
// interface has, and only those that a pod can come back to. ok is false where
// there is none: then nothing is kept.
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

// macOf is the first address of the leases that an interface can have.
func macOf(leases []lease.Lease, otherwise net.HardwareAddr) net.HardwareAddr {
	for _, l := range leases {
		if mac, err := net.ParseMAC(l.MAC); err == nil && IsUsable(mac) {
			return mac
		}
	}
	return otherwise
}

// IsUsable reports whether an Ethernet interface can have the hardware address: six
// bytes, not all zero, and not of a group.
func IsUsable(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0]&1 == 0 && !slices.Equal(mac, make(net.HardwareAddr, 6))
}
