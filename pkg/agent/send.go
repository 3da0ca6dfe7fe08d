package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ready returns the interface of the calling thread's network namespace that has the address and
// can send from it: the interface is running, and the address is not tentative (RFC 4862, 5.4). It
// returns errNotReady if there is none.
func ready(addr netip.Addr) (*net.Interface, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range list {
		has, _ := netip.AddrFromSlice(a.IP)
		if has.Unmap() != addr || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			continue
		}
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			continue // it was removed
		}
		if at := link.Attrs(); isRunning(at) {
			return &net.Interface{
				Index: at.Index, MTU: at.MTU, Name: at.Name, HardwareAddr: at.HardwareAddr, Flags: at.Flags,
			}, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", addr, errNotReady)
}

// isRunning reports whether a link is up and has a hardware address to announce. The flag IFF_UP
// does not suffice: the peer of a veth forwards nothing before both ends have seen the carrier,
// which the operational state shows. Links without an operational state are in the state unknown.
func isRunning(link *netlink.LinkAttrs) bool {
	isOperational := link.OperState == netlink.OperUp || link.OperState == netlink.OperUnknown
	hasNeighbours := link.RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) == 0 && len(link.HardwareAddr) == 6
	return link.Flags&net.FlagUp != 0 && isOperational && hasNeighbours
}

// send announces the address from the interface once.
func send(link *net.Interface, addr netip.Addr) error {
	if addr.Is4() {
		return gratuitousARP(link, addr)
	}
	return unsolicitedNA(link, addr)
}

var (
	broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	noTarget  = make(net.HardwareAddr, 6)
	allNodes  = netip.MustParseAddr("ff02::1")
)

// gratuitousARP sends both forms: the request, as RFC 5227 demands, and the reply, for neighbours
// that accept replies only.
func gratuitousARP(link *net.Interface, addr netip.Addr) error {
	client, err := arp.Dial(link)
	if err != nil {
		return fmt.Errorf("gratuitous ARP from %s: %w", link.Name, err)
	}
	defer client.Close()
	for _, form := range []struct {
		operation arp.Operation
		target    net.HardwareAddr
	}{{arp.OperationRequest, noTarget}, {arp.OperationReply, link.HardwareAddr}} {
		p, err := arp.NewPacket(form.operation, link.HardwareAddr, addr, form.target, addr)
		if err == nil {
			err = client.WriteTo(p, broadcast)
		}
		if err != nil {
			return fmt.Errorf("gratuitous ARP for %s from %s: %w", addr, link.Name, err)
		}
	}
	return nil
}

// unsolicitedNA sends a neighbour advertisement with the override flag from the address itself to
// all nodes.
//
// It opens its own socket. The functions of ndp and golang.org/x/net look up the index of an
// interface by its name in a cache that does not distinguish network namespaces, so that they may
// use the index of another pod's eth0. The kernel fills in the checksum (RFC 3542, 3.1).
func unsolicitedNA(link *net.Interface, addr netip.Addr) error {
	message, err := ndp.MarshalMessage(&ndp.NeighborAdvertisement{
		Override:      true,
		TargetAddress: addr,
		Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: link.HardwareAddr}},
	})
	if err == nil {
		err = sendICMPv6(link.Index, addr, allNodes, message)
	}
	if err != nil {
		return fmt.Errorf("neighbour advertisement for %s from %s: %w", addr, link.Name, err)
	}
	return nil
}

func sendICMPv6(index int, from, to netip.Addr, message []byte) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, ndp.HopLimit); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: from.As16(), ZoneId: uint32(index)}); err != nil {
		return err
	}
	return unix.Sendto(fd, message, unix.MSG_DONTWAIT, &unix.SockaddrInet6{Addr: to.As16(), ZoneId: uint32(index)})
}
