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
		list, err := complete(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, family) })
		if err != nil {
			return fmt.Errorf("failed to list the neighbours: %w", err)
		}
		for _, n := range list {
			if addr, _ := netip.AddrFromSlice(n.IP); !isLearned(n) || !slices.Contains(addrs, addr) {
				continue
			}
			err := netlink.NeighDel(&netlink.Neigh{LinkIndex: n.LinkIndex, Family: family, IP: n.IP})
			if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENODEV) {
				failed = append(failed, fmt.Errorf("failed to delete the neighbour %s on link %d: %w",
					n.IP, n.LinkIndex, err))
			}
		}
	}
	return errors.Join(failed...)
}

// isLearned reports whether the kernel learned the entry by itself.
func isLearned(n netlink.Neigh) bool {
	return n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0 && n.Flags&(unix.NTF_PROXY|unix.NTF_EXT_LEARNED) == 0
}

// listTries is how often a list of the kernel is requested that changes while it is read.
const listTries = 5

// complete requests a list of the kernel until it has not changed meanwhile, listTries times at
// most: a list that has changed may lack entries that existed all the time.
func complete[T any](request func() ([]T, error)) (list []T, err error) {
	for range listTries {
		if list, err = request(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}
