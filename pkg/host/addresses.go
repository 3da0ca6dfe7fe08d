package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// AddressesIn returns all addresses of all interfaces in the network namespace, also of interfaces
// that are down and addresses that are tentative, and on a point-to-point link those of both ends.
//
// It returns ErrNetnsGone if the path no longer leads to the namespace. Any other error means that
// the addresses are unknown.
func (h *Host) AddressesIn(n lease.Netns) (addrs []netip.Addr, err error) {
	err = h.RunInNetns(n, func() error {
		list, err := dump(unix.RTM_GETADDR, unix.AF_UNSPEC, unix.RTM_NEWADDR)
		if err != nil {
			return fmt.Errorf("failed to list the addresses in network namespace %s: %w", n.Path, err)
		}
		for _, m := range list {
			attributes, err := syscall.ParseNetlinkRouteAttr(&m)
			if err != nil {
				return fmt.Errorf("failed to parse the addresses in network namespace %s: %w", n.Path, err)
			}
			for _, a := range attributes {
				addr, ok := netip.AddrFromSlice(a.Value)
				if ok && (a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS) {
					addrs = append(addrs, addr)
				}
			}
		}
		return nil
	})
	return addrs, err
}

// dump requests a list from the kernel, and returns its messages of the type answer. It does not
// use netlink.AddrList and NeighList, which take 64 KiB for each list: an ADD takes 7 % longer.
func dump(request, family int, answer uint16) ([]syscall.NetlinkMessage, error) {
	list, err := complete(func() ([]byte, error) { return syscall.NetlinkRIB(request, family) })
	return slices.DeleteFunc(list, func(m syscall.NetlinkMessage) bool { return m.Header.Type != answer }), err
}

// dumpTries is how often complete requests a list that changes while it is read.
const dumpTries = 5

// errChanged is returned by complete if the list changed each time.
var errChanged = errors.New("the kernel's list changed while it was read")

// complete requests a list of the kernel until it has not changed meanwhile, dumpTries times at
// most: a list that has changed may lack entries that existed all the time.
func complete(request func() ([]byte, error)) ([]syscall.NetlinkMessage, error) {
	for range dumpTries {
		b, err := request()
		if err != nil {
			return nil, err
		}
		list, err := syscall.ParseNetlinkMessage(b)
		isCut := func(m syscall.NetlinkMessage) bool { return m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 }
		if err != nil || !slices.ContainsFunc(list, isCut) {
			return list, err
		}
	}
	return nil, errChanged
}
