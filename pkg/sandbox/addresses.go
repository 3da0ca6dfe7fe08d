package sandbox

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// AddressesIn returns every address that an interface in the network namespace has,
// in whatever state the interface and the address are.
//
// Errors: ErrNetnsGone where the path leads to the namespace no longer. After any other
// one nothing is known of its addresses.
func (h *Host) AddressesIn(n lease.Netns) (addrs []netip.Addr, err error) {
	err = h.RunInNetns(n, func() error {
		list, err := dump(unix.RTM_GETADDR, unix.AF_UNSPEC)
		if err != nil {
			return fmt.Errorf("the addresses in network namespace %s cannot be listed: %w", n.Path, err)
		}
		for _, m := range list {
			if m.Header.Type == unix.RTM_NEWADDR && len(m.Data) >= unix.SizeofIfAddrmsg {
				addrs = append(addrs, addressesOf(m.Data)...)
			}
		}
		return nil
	})
	return addrs, err
}

// addressesOf are the addresses that one message names: on a point-to-point link the
// interface's own is IFA_LOCAL and the other end's is IFA_ADDRESS.
func addressesOf(message []byte) (addrs []netip.Addr) {
	for _, a := range attributes(message[unix.SizeofIfAddrmsg:]) {
		if addr, ok := netip.AddrFromSlice(a.value); ok && (a.kind == unix.IFA_LOCAL || a.kind == unix.IFA_ADDRESS) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
