package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// ForgetNeighbours deletes the neighbour entries of the addresses that the kernel learned in the
// network namespace of this process, on all links. A recreated pod has another hardware address,
// and the kernel would use the old entry for half a minute. Entries that were added by hand stay.
func (h *Host) ForgetNeighbours(addrs []netip.Addr) error {
	var failed []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		wanted := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
			return a.Is4() != (family == unix.AF_INET)
		})
		if len(wanted) == 0 {
			continue
		}
		list, err := dump(unix.RTM_GETNEIGH, family)
		if err != nil {
			return fmt.Errorf("failed to list the neighbours: %w", err)
		}
		for _, m := range list {
			n, ok := parseNeighbour(m.Data)
			if m.Header.Type != unix.RTM_NEWNEIGH || !ok || !n.isLearned() || !slices.Contains(wanted, n.addr) {
				continue
			}
			err := change(unix.RTM_DELNEIGH, n.request())
			if err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENODEV) {
				failed = append(failed, fmt.Errorf("failed to delete the neighbour %s on link %d: %w",
					n.addr, n.link, err))
			}
		}
	}
	return errors.Join(failed...)
}

// neighbour is an entry of the kernel's neighbour tables.
type neighbour struct {
	family uint8
	link   uint32
	state  uint16
	flags  uint8
	addr   netip.Addr
}

// isLearned reports whether the kernel learned the entry by itself.
func (n neighbour) isLearned() bool {
	return n.state&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0 && n.flags&(unix.NTF_PROXY|unix.NTF_EXT_LEARNED) == 0
}

// sizeofNdMsg is the size of the kernel's struct ndmsg: family, 3 bytes of padding, link, state,
// flags, type.
const sizeofNdMsg = 12

func parseNeighbour(b []byte) (neighbour, bool) {
	if len(b) < sizeofNdMsg {
		return neighbour{}, false
	}
	addr, ok := netip.AddrFromSlice(find(attributes(b[sizeofNdMsg:]), unix.NDA_DST))
	return neighbour{
		family: b[0], link: binary.NativeEndian.Uint32(b[4:]), state: binary.NativeEndian.Uint16(b[8:]),
		flags: b[10], addr: addr,
	}, ok
}

// request returns the body of a message that names the entry.
func (n neighbour) request() []byte {
	b := make([]byte, sizeofNdMsg)
	b[0] = n.family
	binary.NativeEndian.PutUint32(b[4:], n.link)
	return appendAttribute(b, unix.NDA_DST, n.addr.AsSlice())
}
