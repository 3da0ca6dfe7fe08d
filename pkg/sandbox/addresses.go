package sandbox

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// AddressesIn returns all addresses of all interfaces in the network namespace, whatever the state
// of the interface and the address.
//
// It returns ErrNetnsGone if the path no longer leads to the namespace. After another error nothing
// is known about its addresses.
func (h *Host) AddressesIn(n lease.Netns) (addrs []netip.Addr, err error) {
	err = h.RunInNetns(n, func() error {
		list, err := dump(unix.RTM_GETADDR, unix.AF_UNSPEC)
		if err != nil {
			return fmt.Errorf("failed to list the addresses in network namespace %s: %w", n.Path, err)
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

// addressesOf returns the addresses in one message: on a point-to-point link IFA_LOCAL is the
// interface's own and IFA_ADDRESS that of the other end.
func addressesOf(message []byte) (addrs []netip.Addr) {
	for _, a := range attributes(message[unix.SizeofIfAddrmsg:]) {
		if addr, ok := netip.AddrFromSlice(a.value); ok && (a.kind == unix.IFA_LOCAL || a.kind == unix.IFA_ADDRESS) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
