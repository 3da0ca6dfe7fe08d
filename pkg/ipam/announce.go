package ipam

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// returned handles the neighbours of a pod that has returned to its addresses, because they know
// the addresses with another hardware address. It deletes the neighbour entries of this node, and
// adds the pod to the agent's announce queue. Errors are only warnings: the pod has its addresses
// anyway.
func (s *Service) returned(a *assignment) {
	var kept []netip.Addr
	for _, p := range a.picks {
		if p.event == store.EventKept || p.event == store.EventTakenOver {
			kept = append(kept, p.next.Address)
		}
	}
	if len(kept) == 0 {
		return
	}
	if err := s.Node.Host.ForgetNeighbours(kept); err != nil {
		s.Node.Warnf("%v", err)
	}
	if err := s.Node.Store.Run().Announce(a.holder.Attachment()); err != nil {
		s.Node.Warnf("%v", err)
	}
}

// KeepMAC returns the hardware address that an attachment's interface must get, for the plugin's
// chained entry. It is the one that the leases have, otherwise the present one of the interface
// (has). If fixed is set, it is always the present one, because a user has chosen it. KeepMAC
// records the result in the leases.
//
// It uses the leases that have a key and whose addresses (addrs) the interface has. ok is false if
// there is none.
func (s *Service) KeepMAC(ctx context.Context, who lease.Attachment, addrs []netip.Addr, has net.HardwareAddr,
	fixed bool) (mac net.HardwareAddr, ok bool, err error) {
	err = s.Node.Update(ctx, operation.Scope{}, func(c *operation.Call) error {
		mac, ok = has, false
		leases, err := c.Tx.ByHolder(who.ContainerID, who.IfName)
		if err != nil {
			return err
		}
		leases = slices.DeleteFunc(leases, func(l lease.Lease) bool {
			return l.Key().IsZero() || !slices.Contains(addrs, l.Address)
		})
		ok = len(leases) > 0
		for _, l := range slices.Backward(leases) { // the first usable one counts
			if kept, err := net.ParseMAC(l.MAC); err == nil && IsUsable(kept) && !fixed {
				mac = kept
			}
		}
		for _, l := range leases {
			next := l
			if next.MAC = mac.String(); next.MAC == l.MAC {
				continue
			}
			if err := c.Put(l, next); err != nil {
				return err
			}
		}
		return nil
	})
	return mac, ok, err
}

// IsUsable reports whether an Ethernet interface can have the hardware address: it has six bytes,
// is not zero and not a multicast address.
func IsUsable(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0]&1 == 0 && !slices.Equal(mac, make(net.HardwareAddr, 6))
}
