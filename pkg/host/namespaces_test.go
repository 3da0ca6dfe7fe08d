package host

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func testHost(t *testing.T) *Host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as make test does")
	}
	return New("/proc", DefaultBootIDFile)
}

// inNewNetns runs fn on a thread in a fresh network namespace, which ends then
// unless something keeps it.
func inNewNetns(t *testing.T, fn func() error) {
	t.Helper()
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	must.Succeed(t, err)
	defer own.Close()
	must.Succeed(t, unix.Unshare(unix.CLONE_NEWNET))
	err = fn()
	must.Succeed(t, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET))
	runtime.UnlockOSThread()
	must.Succeed(t, err)
}

// mountNetns mounts the thread's namespace on a file.
func mountNetns(path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
}

// newMounted makes a namespace that only a mount keeps, with an interface eth0
// that has the addresses.
func newMounted(t *testing.T, path string, addresses ...string) {
	t.Helper()
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	inNewNetns(t, func() error { return errors.Join(addEth0(addresses...), mountNetns(path)) })
}

// newRunning makes a namespace that has a process and no mount.
func newRunning(t *testing.T, setUp func() error) {
	t.Helper()
	sleep := exec.Command("sleep", "60") // a child of the thread, so in its namespace
	t.Cleanup(func() {
		if sleep.Process != nil {
			_ = sleep.Process.Kill()
			_ = sleep.Wait()
		}
	})
	inNewNetns(t, func() error { return errors.Join(setUp(), sleep.Start()) })
}

// addEth0 adds an interface and leaves it down: its addresses count all the same.
func addEth0(addresses ...string) error {
	mac, _ := net.ParseMAC("02:00:00:00:00:07")
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: mac}, PeerName: "peer"}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return nil
}

// A namespace is found by its mount, or by a process, and listed once, with the path of its mount
// if it has one. The host's is not listed, even if it is mounted.
func TestNamespaces(t *testing.T) {
	h := testHost(t)
	dir := t.TempDir()
	own, mounted, both := filepath.Join(dir, "host"), filepath.Join(dir, "a pod's netns"), filepath.Join(dir, "pod")
	for _, path := range []string{own, both} {
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
	must.Succeed(t, mountNetns(own))
	newMounted(t, mounted, "10.9.8.7/24", "fd00:9::7/64", "fe80::7:7/64") // the kernel escapes the space
	newRunning(t, func() error { return addEth0("10.9.8.9/24") })
	newRunning(t, func() error { return errors.Join(addEth0("10.9.8.10/24"), mountNetns(both)) })
	list, err := h.Namespaces()
	must.Succeed(t, err)
	at := map[string]string{} // the paths by address; other tests may run on this machine
	for _, n := range list {
		isOf := func(path string) bool {
			of, err := h.Netns(path)
			return err == nil && of.Same(n.Netns)
		}
		switch {
		case isOf(own):
			t.Errorf("the host's namespace is listed: %+v", n)
		case n.Netns.Path != mounted && isOf(mounted), n.Netns.Path != both && isOf(both):
			t.Errorf("a namespace that is mounted is listed at another path: %+v", n)
		}
		for _, a := range n.Addresses {
			isOurs := strings.HasPrefix(n.Netns.Path, "/proc/") || strings.HasPrefix(n.Netns.Path, dir)
			if isOurs && a.IfName == "eth0" && a.MAC == "02:00:00:00:00:07" {
				at[a.Addr.String()] = n.Netns.Path
			}
		}
	}
	for addr, want := range map[string]string{"10.9.8.7": mounted, "fd00:9::7": mounted, "fe80::7:7": "",
		"10.9.8.10": both} {
		check.Equal(t, at[addr], want, addr, "is at")
	}
	if path := at["10.9.8.9"]; !strings.HasSuffix(path, "/ns/net") {
		t.Errorf("what has no mount is at %q, want a process's /proc/PID/ns/net", path)
	}
	if !slices.IsSortedFunc(list, func(a, b Namespace) int { return strings.Compare(a.Netns.Path, b.Netns.Path) }) {
		t.Errorf("not in the order of their paths: %+v", list)
	}
}

// A namespace that cannot be entered is listed with an error.
func TestNamespacesReportsUnreadable(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "uts")
	must.Succeed(t, os.WriteFile(path, nil, 0o600))
	must.Succeed(t, unix.Mount("/proc/self/ns/uts", path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	var st unix.Stat_t
	must.Succeed(t, unix.Stat(path, &st))
	got := h.readAll([]lease.Netns{
		{Path: path, Dev: uint64(st.Dev), Ino: st.Ino},
		{Path: path + "-gone", Dev: 1, Ino: 1},
		{Path: path, Dev: uint64(st.Dev), Ino: st.Ino + 1}, // replaced since it was found
	})
	if len(got) != 1 || got[0].Err == nil || got[0].Netns.Ino != st.Ino {
		t.Errorf("got %+v; want one namespace with an error, without the two that have ended", got)
	}
}

// withoutMounts lets a /proc show no mount of a namespace.
func withoutMounts(t *testing.T, proc string) {
	t.Helper()
	must.Succeed(t, errors.Join(os.Mkdir(filepath.Join(proc, "self"), 0o700),
		os.WriteFile(filepath.Join(proc, "self", "mountinfo"), []byte("no namespace\n"), 0o600)))
}

// Process 1 may be unreadable. Its namespace is omitted in any case.
func TestNamespacesWithoutProcessOne(t *testing.T) {
	dir := t.TempDir()
	for _, pid := range []string{"1", "7"} {
		ns := filepath.Join(dir, pid, "ns")
		err := errors.Join(os.MkdirAll(ns, 0o700), os.Symlink("net", filepath.Join(ns, "net"))) // to itself
		must.Succeed(t, err)
	}
	withoutMounts(t, dir)
	list, err := New(dir, "").Namespaces()
	if err != nil || len(list) != 1 || !strings.Contains(list[0].Netns.Path, "/7/") || list[0].Err == nil {
		t.Errorf("%+v, %v; want process 7 and an error", list, err)
	}
}

func TestNetnsMount(t *testing.T) {
	for _, tt := range []struct {
		line string
		want mount
	}{
		{"36 35 0:4 net:[4026532] /run/netns/x rw shared:1 - nsfs nsfs rw", mount{4026532, "/run/netns/x", true}},
		{"36 35 0:4 net:[4026532] /run/netns/x rw master:1 - nsfs nsfs rw", mount{4026532, "/run/netns/x", true}},
		{"36 35 0:4 net:[4026532] /run/netns/x rw shared:2 master:1 - nsfs nsfs rw",
			mount{4026532, "/run/netns/x", true}},
		{"36 35 0:4 net:[4026532] /run/netns/x rw unbindable - nsfs nsfs rw", mount{4026532, "/run/netns/x", false}},
		{"36 35 0:4 net:[4026532] /run/shared:1 rw - nsfs nsfs rw", mount{4026532, "/run/shared:1", false}},
		{`36 35 0:4 net:[4026532] /run/a\040b\134c rw - nsfs nsfs rw`, mount{4026532, `/run/a b\c`, false}},
		{"36 35 0:4 mnt:[4026532] /run/snapd/ns/x rw - nsfs nsfs rw", mount{}},
		{"36 35 0:4 net:[x] /run/netns/x rw - nsfs nsfs rw", mount{}},
		{"36 35 0:4 net:[4026532 /run/netns/x rw - nsfs nsfs rw", mount{}},
		{"36 35 0:4 net:4026532] /run/netns/x rw - nsfs nsfs rw", mount{}},
		{"36 35 0:4 net:[4026532] /run/fake rw - tmpfs net:[1] rw", mount{}},
		{"36 35 0:4 net:[4026532]", mount{}},
		{"36 35 - nsfs nsfs rw", mount{}},
		{"", mount{}},
	} {
		if m, ok := netnsMount(tt.line); m != tt.want || ok != (tt.want.path != "") {
			t.Errorf("%q: %+v, %v; want %+v", tt.line, m, ok, tt.want)
		}
	}
}
