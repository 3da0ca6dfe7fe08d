package host

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// AddressesIn returns all addresses of all interfaces in the network namespace, also of interfaces
// that are down and addresses that are tentative.
//
// It returns ErrNetnsGone if the path no longer leads to the namespace. Any other error means that
// the addresses are unknown.
func (h *Host) AddressesIn(n lease.Netns) (addrs []netip.Addr, err error) {
	err = h.RunInNetns(n, func() error {
		list, err := dump(unix.RTM_GETADDR, unix.AF_UNSPEC)
		if err != nil {
			return fmt.Errorf("failed to list the addresses in network namespace %s: %w", n.Path, err)
		}
		for _, m := range list {
			if m.Header.Type == unix.RTM_NEWADDR {
				addrs = append(addrs, addressesOf(m.Data)...)
			}
		}
		return nil
	})
	return addrs, err
}

// addressesOf returns the addresses in one RTM_NEWADDR message. On a point-to-point link it returns
// those of both ends: IFA_LOCAL is the interface's own address and IFA_ADDRESS that of the peer.
func addressesOf(message []byte) (addrs []netip.Addr) {
	for _, a := range attributes(message[min(unix.SizeofIfAddrmsg, len(message)):]) {
		if addr, ok := netip.AddrFromSlice(a.value); ok && (a.kind == unix.IFA_LOCAL || a.kind == unix.IFA_ADDRESS) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
