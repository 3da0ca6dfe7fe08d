package sandbox

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func mac(t *testing.T, s string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A library is the oracle: it sees what was set.
func TestTheMACOfALink(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	mounted(t, path)
	l, err := h.Link(path, "eth0")
	if err != nil || l.Kind != "veth" || l.Index == 0 || l.MAC.String() != "02:00:00:00:00:07" {
		t.Fatalf("eth0 is %+v, %v; want the veth with its address", l, err)
	}
	if err := h.SetMAC(path, "eth0", mac(t, "02:00:00:00:00:09")); err != nil {
		t.Fatal(err)
	}
	n, err := h.Netns(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.RunInNetns(n, func() error {
		seen, err := netlink.LinkByName("eth0")
		if err == nil && seen.Attrs().HardwareAddr.String() != "02:00:00:00:00:09" {
			t.Errorf("eth0 has %s", seen.Attrs().HardwareAddr)
		}
		for _, file := range []string{"ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify"} {
			if b, err := os.ReadFile("/proc/sys/net/" + file); err != nil || string(b) != "1\n" {
				t.Errorf("%s is %q, %v", file, b, err)
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func TestALinkThatCannotHaveTheMAC(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	mounted(t, path)
	if err := h.SetMAC(path, "eth0", mac(t, "01:00:5e:00:00:01")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a group's address: %v", err)
	}
	if err := h.SetMAC(path, "eth1", mac(t, "02:00:00:00:00:01")); !errors.Is(err, ErrNoLink) {
		t.Errorf("no such interface: %v", err)
	}
	if _, err := h.Link(path, "eth1"); !errors.Is(err, ErrNoLink) {
		t.Errorf("no such interface: %v", err)
	}
	if _, err := h.Link(filepath.Join(t.TempDir(), "gone"), "eth0"); !errors.Is(err, ErrNotNetns) {
		t.Errorf("no such namespace: %v", err)
	}
}

func TestInside(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	mounted(t, path, "10.9.8.12/24")
	n, err := h.Netns(path)
	if err != nil {
		t.Fatal(err)
	}
	home, err := h.Netns("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		wrong := errors.New("as I said")
		if err := h.RunInNetns(n, func() error { return wrong }); err != wrong {
			t.Fatalf("the function's error became %v", err)
		}
	}
	if now, err := h.Netns("/proc/self/ns/net"); err != nil || !now.Same(home) {
		t.Errorf("the process is in %+v, %v; want %+v", now, err, home)
	}
	called := false
	other := lease.Netns{Path: path, Dev: n.Dev, Ino: n.Ino + 1}
	for _, gone := range []lease.Netns{other, {Path: path}, {Path: path + "-gone", Dev: 4, Ino: 5}} {
		if err := h.RunInNetns(gone, func() error { called = true; return nil }); !errors.Is(err, ErrNetnsGone) || called {
			t.Errorf("%+v: %v, called: %v", gone, err, called)
		}
	}
}

// Only what was learnt of these addresses is forgotten, on all links.
func TestForgetNeighbours(t *testing.T) {
	h := testHost(t)
	inNewNetns(t, func() error {
		if err := addEth0("10.9.8.1/24", "fd00:9::1/64"); err != nil {
			return err
		}
		peer, err := netlink.LinkByName("peer")
		if err != nil {
			return err
		}
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, l := range []netlink.Link{peer, eth0} {
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		add := func(l netlink.Link, addr string, state int) {
			n := &netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP(addr), HardwareAddr: mac(t, "02:00:00:00:00:08"), State: state}
			if err := netlink.NeighAdd(n); err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
		}
		add(eth0, "10.9.8.7", netlink.NUD_REACHABLE)
		add(peer, "10.9.8.7", netlink.NUD_STALE)
		add(eth0, "fd00:9::7", netlink.NUD_REACHABLE)
		add(eth0, "10.9.8.8", netlink.NUD_PERMANENT)
		add(eth0, "10.9.8.9", netlink.NUD_REACHABLE)
		if err := h.ForgetNeighbours([]netip.Addr{netip.MustParseAddr("10.9.8.7"), netip.MustParseAddr("fd00:9::7"), netip.MustParseAddr("10.9.8.8"), netip.MustParseAddr("10.9.8.77")}); err != nil {
			t.Errorf("%v", err)
		}
		var left []string
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.NeighList(0, family)
			if err != nil {
				return err
			}
			for _, n := range list {
				if n.State != netlink.NUD_NOARP && n.State&(netlink.NUD_FAILED|netlink.NUD_NONE) == 0 {
					left = append(left, n.IP.String())
				}
			}
		}
		slices.Sort(left)
		if got := strings.Join(left, " "); got != "10.9.8.8 10.9.8.9" {
			t.Errorf("left are %s; want the one made by hand and the one of another", got)
		}
		return h.ForgetNeighbours(nil)
	})
}

func TestAcknowledged(t *testing.T) {
	if err := acknowledged(nil); err == nil {
		t.Error("silence is a yes")
	}
	if err := acknowledged([]byte{1, 2, 3}); err == nil {
		t.Error("noise is a yes")
	}
}

func FuzzNetlinkMessages(f *testing.F) {
	f.Add(neighbour{family: unix.AF_INET, link: 3, addr: netip.MustParseAddr("10.0.0.1")}.request())
	f.Add(appendAttribute(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_IFNAME, []byte("eth0\x00")))
	f.Add(appendAttribute(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_LINKINFO, appendAttribute(nil, unix.IFLA_INFO_KIND, []byte("veth\x00"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseLink(b)
		_ = acknowledged(b)
		for _, a := range attributes(b) {
			if again := attributes(appendAttribute(nil, a.kind, a.value)); len(a.value) < 1<<15 && (len(again) != 1 || again[0].kind != a.kind || !bytes.Equal(again[0].value, a.value)) {
				t.Errorf("%v became %v", a, again)
			}
		}
		if n, ok := parseNeighbour(b); ok {
			again, ok := parseNeighbour(n.request())
			if !ok || again.addr != n.addr || again.link != n.link || again.family != n.family {
				t.Errorf("%+v became %+v, %v", n, again, ok)
			}
		}
	})
}
