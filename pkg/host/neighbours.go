package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ForgetNeighbours deletes the neighbour entries of the addresses that the kernel learned in the
// network namespace of this process, on all links. A recreated pod has another hardware address,
// and the kernel would use the old entry for half a minute. Entries that were added by hand stay.
func (h *Host) ForgetNeighbours(addrs []netip.Addr) error {
	var failed []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == (family == netlink.FAMILY_V4) }) {
			continue
		}
		list, err := dump(unix.RTM_GETNEIGH, family, unix.RTM_NEWNEIGH)
		if err != nil {
			return fmt.Errorf("failed to list the neighbours: %w", err)
		}
		for _, m := range list {
			n, err := netlink.NeighDeserialize(m.Data)
			if err != nil {
				return fmt.Errorf("failed to list the neighbours: %w", err)
			}
			if addr, _ := netip.AddrFromSlice(n.IP); !isLearned(n) || !slices.Contains(addrs, addr) {
				continue
			}
			err = netlink.NeighDel(&netlink.Neigh{LinkIndex: n.LinkIndex, Family: family, IP: n.IP})
			if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENODEV) {
				failed = append(failed, fmt.Errorf("failed to delete the neighbour %s on link %d: %w",
					n.IP, n.LinkIndex, err))
			}
		}
	}
	return errors.Join(failed...)
}

// isLearned reports whether the kernel learned the entry by itself.
func isLearned(n *netlink.Neigh) bool {
	return n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0 && n.Flags&(unix.NTF_PROXY|unix.NTF_EXT_LEARNED) == 0
}
