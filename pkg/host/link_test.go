package host

import (
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func mac(t *testing.T, s string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(s)
	must.Succeed(t, err)
	return m
}

func TestSetMAC(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	newMounted(t, path)
	l, err := h.Link(path, "eth0")
	if err != nil || l.Kind != "veth" || l.MAC.String() != "02:00:00:00:00:07" {
		t.Fatalf("eth0 is %+v, %v; want a veth with the address 02:00:00:00:00:07", l, err)
	}
	must.Succeed(t, h.SetMAC(path, "eth0", mac(t, "02:00:00:00:00:09")))
	n, err := h.Netns(path)
	must.Succeed(t, err)
	must.Succeed(t, h.RunInNetns(n, func() error {
		seen, err := netlink.LinkByName("eth0")
		if err == nil && seen.Attrs().HardwareAddr.String() != "02:00:00:00:00:09" {
			t.Errorf("eth0 has %s", seen.Attrs().HardwareAddr)
		}
		for _, file := range []string{"ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify"} {
			check.Equal(t, string(must.Read(t, "/proc/sys/net/"+file)), "1\n", file)
		}
		return err
	}))
}

func TestSetMACErrors(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	newMounted(t, path)
	check.Is(t, h.SetMAC(path, "eth0", mac(t, "01:00:5e:00:00:01")), syscall.EADDRNOTAVAIL, "a multicast address")
	check.Is(t, h.SetMAC(path, "eth1", mac(t, "02:00:00:00:00:01")), ErrNoLink, "no such interface")
	_, err := h.Link(path, "eth1")
	check.Is(t, err, ErrNoLink, "no such interface")
	_, err = h.Link(filepath.Join(t.TempDir(), "gone"), "eth0")
	check.Is(t, err, ErrNotNetns, "no such namespace")
}

// TestForgetNeighbours: only learned entries of the given addresses are deleted, on all links.
func TestForgetNeighbours(t *testing.T) {
	h := testHost(t)
	inNewNetns(t, func() error {
		must.Succeed(t, addEth0("10.9.8.1/24", "fd00:9::1/64"))
		links := map[string]netlink.Link{}
		for _, name := range []string{"eth0", "peer"} {
			l, err := netlink.LinkByName(name)
			must.Succeed(t, err)
			must.Succeed(t, netlink.LinkSetUp(l))
			links[name] = l
		}
		for _, n := range []struct {
			link, addr string
			state      int
		}{
			{"eth0", "10.9.8.7", netlink.NUD_REACHABLE},
			{"peer", "10.9.8.7", netlink.NUD_STALE},
			{"eth0", "fd00:9::7", netlink.NUD_REACHABLE},
			{"eth0", "10.9.8.8", netlink.NUD_PERMANENT},
			{"eth0", "10.9.8.9", netlink.NUD_REACHABLE},
		} {
			must.Succeed(t, netlink.NeighAdd(&netlink.Neigh{LinkIndex: links[n.link].Attrs().Index, State: n.state,
				IP: net.ParseIP(n.addr), HardwareAddr: mac(t, "02:00:00:00:00:08")}))
		}
		var addrs []netip.Addr
		for _, a := range []string{"10.9.8.7", "fd00:9::7", "10.9.8.8", "10.9.8.77"} {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		must.Succeed(t, h.ForgetNeighbours(addrs))
		var left []string
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.NeighList(0, family)
			must.Succeed(t, err)
			for _, n := range list {
				if n.State != netlink.NUD_NOARP && n.State&(netlink.NUD_FAILED|netlink.NUD_NONE) == 0 {
					left = append(left, n.IP.String())
				}
			}
		}
		slices.Sort(left)
		check.Equal(t, strings.Join(left, " "), "10.9.8.8 10.9.8.9", "the permanent entry and that of another address")
		return h.ForgetNeighbours(nil)
	})
}
