package host

import (
	"errors"

	"net"
	"net/netip"
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
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		t.Fatal(back)
	}
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

func namespaceAt(list []Namespace, path string) (Namespace, bool) {
	i := slices.IndexFunc(list, func(n Namespace) bool { return n.Netns.Path == path })
	if i < 0 {
		return Namespace{}, false
	}
	return list[i], true
}

func TestNamespacesOfMounts(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "a pod's netns") // the kernel escapes the space
	newMounted(t, path, "10.9.8.7/24", "fd00:9::7/64", "fe80::7:7/64")
	newMounted(t, path+" 2")
	before, err := h.Netns(path)
	must.Succeed(t, err)

	list, err := h.Namespaces()
	must.Succeed(t, err)
	got, found := namespaceAt(list, path)
	if !found {
		t.Fatalf("the namespace mounted at %s is not in %+v", path, list)
	}
	want := []Address{
		{netip.MustParseAddr("10.9.8.7"), "eth0", "02:00:00:00:00:07"},
		{netip.MustParseAddr("fd00:9::7"), "eth0", "02:00:00:00:00:07"},
	}
	if got.Err != nil || !got.Netns.Same(before) || !slices.Equal(got.Addresses, want) {
		t.Errorf("got %+v\nwant %+v in %+v", got, want, before)
	}
	if !slices.IsSortedFunc(list, func(a, b Namespace) int { return strings.Compare(a.Netns.Path, b.Netns.Path) }) {
		t.Errorf("not in the order of their paths: %+v", list)
	}
}

// A namespace that is not mounted is found by its process.
func TestNamespacesOfProcesses(t *testing.T) {
	h := testHost(t)
	newRunning(t, func() error { return addEth0("10.9.8.9/24") })

	list, err := h.Namespaces()
	must.Succeed(t, err)
	has := func(n Namespace) bool {
		return slices.ContainsFunc(n.Addresses, func(a Address) bool { return a.Addr.String() == "10.9.8.9" })
	}
	i := slices.IndexFunc(list, has)
	if i < 0 {
		t.Fatalf("no namespace has the address: %+v", list)
	}
	if p := list[i].Netns.Path; !strings.HasPrefix(p, "/proc/") || list[i].Netns.Ino == 0 {
		t.Errorf("it is at %+v, want a process's /proc/PID/ns/net", list[i].Netns)
	}
}

// A namespace with a mount and a process is listed once, with the path of its mount. The host's is
// not listed, even if it is mounted.
func TestNamespacesListsEachOnce(t *testing.T) {
	h := testHost(t)
	dir := t.TempDir()
	own := filepath.Join(dir, "host")
	must.Succeed(t, mountNetns(own))
	t.Cleanup(func() { _ = unix.Unmount(own, unix.MNT_DETACH) })
	path := filepath.Join(dir, "pod")
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	newRunning(t, func() error { return errors.Join(addEth0("10.9.8.10/24"), mountNetns(path)) })

	list, err := h.Namespaces()
	must.Succeed(t, err)
	host, err := h.Netns("/proc/self/ns/net")
	must.Succeed(t, err)
	pod, err := h.Netns(path)
	must.Succeed(t, err)
	times := 0
	for _, n := range list {
		if n.Netns.Same(host) {
			t.Errorf("the host's namespace is listed: %+v", n)
		}
		if n.Netns.Same(pod) {
			times++
		}
	}
	if _, found := namespaceAt(list, path); times != 1 || !found {
		t.Errorf("the pod's namespace is listed %d times, at its mount: %v", times, found)
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
