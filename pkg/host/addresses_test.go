package host

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestAddressesIn(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	newMounted(t, path, "10.1.2.3/24", "fd00::5/64", "fe80::77/64", "169.254.9.9/16")
	n, err := h.Netns(path)
	must.Succeed(t, err)
	has := func(name, addr string, want bool) {
		t.Helper()
		list, err := h.AddressesIn(n)
		if got := slices.Contains(list, netip.MustParseAddr(addr)); err != nil || got != want {
			t.Errorf("%s: %s: got %v, want %v, of %v, %v", name, addr, got, want, list, err)
		}
	}
	change := func(addr string, down bool, by func(netlink.Link, *netlink.Addr) error) {
		t.Helper()
		must.Succeed(t, h.RunInNetns(n, func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(addr)
			if err != nil {
				return err
			}
			if down {
				return errors.Join(by(link, a), netlink.LinkSetDown(link))
			}
			return by(link, a)
		}))
	}
	for _, addr := range []string{"10.1.2.3", "fd00::5", "fe80::77", "169.254.9.9"} {
		has("unchanged", addr, true)
	}
	has("another address", "10.1.2.4", false)
	change("10.1.2.3/24", false, netlink.AddrDel)
	has("removed", "10.1.2.3", false)
	change("10.7.7.7/32", true, func(l netlink.Link, a *netlink.Addr) error {
		a.Peer, _ = netlink.ParseIPNet("10.8.8.8/32")
		return netlink.AddrAdd(l, a)
	})
	has("of a point-to-point link that is down", "10.7.7.7", true)
	has("of another interface", "169.254.9.9", true)

	other := n
	other.Ino++
	list, err := h.AddressesIn(other)
	check.Is(t, err, ErrNetnsGone, "another namespace at the path", list)
	must.Succeed(t, unix.Unmount(path, unix.MNT_DETACH))
	list, err = h.AddressesIn(n)
	check.Is(t, err, ErrNetnsGone, "unmounted", list)
	// A namespace that cannot be read must not count as ended.
	n.Path += "-loop"
	must.Succeed(t, unix.Symlink(n.Path, n.Path))
	if list, err := h.AddressesIn(n); err == nil || errors.Is(err, ErrNetnsGone) {
		t.Errorf("a path that cannot be followed: %v, %v", list, err)
	}
}
