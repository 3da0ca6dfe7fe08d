package host

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/descriptors"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestNetns(t *testing.T) {
	h := testHost(t)
	dir := t.TempDir()
	alive := filepath.Join(dir, "alive")
	newMounted(t, alive)
	plain := filepath.Join(dir, "plain")
	must.Succeed(t, os.WriteFile(plain, nil, 0o600))
	loop := filepath.Join(dir, "loop")
	must.Succeed(t, os.Symlink("loop", loop))
	if _, err := h.Netns(loop); err == nil || errors.Is(err, ErrNotNetns) {
		t.Errorf("a path that cannot be followed: %v, want another error than ErrNotNetns", err)
	}
	fifo := filepath.Join(dir, "fifo") // opening one must not hang
	must.Succeed(t, unix.Mkfifo(fifo, 0o600))
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	must.Succeed(t, err)
	defer listener.Close()
	for path, want := range map[string]bool{
		alive: true, "/proc/thread-self/ns/net": true,
		plain: false, fifo: false, socket: false, dir: false, "/proc/thread-self/ns/mnt": false,
		filepath.Join(dir, "gone"): false, "": false,
	} {
		n, err := h.Netns(path)
		if (err == nil) != want || want != (n.Ino != 0) || n.Path != path {
			t.Errorf("%s: %+v, %v", path, n, err)
		}
		if err != nil && !errors.Is(err, ErrNotNetns) {
			t.Errorf("%s: %v, want ErrNotNetns", path, err)
		}
	}
}

func TestQuickState(t *testing.T) {
	h := testHost(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "netns")
	newMounted(t, path)
	n, err := h.Netns(path)
	must.Succeed(t, err)
	holder := lease.Holder{ContainerID: "c1", IfName: "eth0", Netns: n, BootID: "boot-1"}
	failure := "" // part of the error; "" for none
	see := func(name string, boot string, state lease.Liveness) {
		t.Helper()
		l, err := h.QuickState(holder, boot)
		if l != state || state == lease.Unknown && (err != nil) != (failure != "") ||
			err != nil && !strings.Contains(err.Error(), failure) {
			t.Errorf("%s: %s, %v; want %s", name, l, err, state)
		}
	}
	see("mounted", "boot-1", lease.Alive)
	see("mounted, in another boot", "boot-2", lease.Dead)
	see("mounted, the boot id is unknown", "", lease.Alive)
	must.Succeed(t, unix.Unmount(path, 0))
	see("unmounted, the file exists", "boot-1", lease.Unknown)
	newMounted(t, path)
	if again, err := h.Netns(path); err == nil && again.Ino != n.Ino {
		see("another namespace at the path", "boot-1", lease.Unknown)
	}
	must.Succeed(t, errors.Join(unix.Unmount(path, 0), os.Remove(path)))
	see("removed", "boot-1", lease.Unknown)
	if err := os.Symlink("netns", path); err != nil { // to itself
		t.Fatal(err)
	}
	failure = "stat " + path + ": too many levels of symbolic links"
	see("a path that cannot be resolved", "boot-1", lease.Unknown)
	see("removed, the boot id is unknown", "", lease.Unknown)
	failure, holder.Netns = "is not known", lease.Netns{Path: path}
	see("the namespace is not known", "boot-1", lease.Unknown)
	see("the namespace is not known, in another boot", "boot-2", lease.Dead)
	holder.BootID = ""
	see("bound without a boot id", "boot-2", lease.Unknown)
}

func TestProcessNetns(t *testing.T) {
	h := testHost(t)
	var n lease.Netns
	newRunning(t, func() (err error) {
		n, err = h.Netns("/proc/thread-self/ns/net")
		return err
	})
	if got, err := h.ProcessNetns(); !got[n.Ino] || err != nil {
		t.Errorf("a namespace with a process is not in use: %v", err)
	}
	for _, proc := range []string{t.TempDir(), "/does-not-exist"} {
		if got, err := New(proc, "").ProcessNetns(); err == nil {
			t.Errorf("%s without processes: %v", proc, got)
		}
	}
}

// Process 1 is in the host's namespace, which no lease has. Any other process may be in a sandbox.
func TestProcessOneNeedNotBeReadable(t *testing.T) {
	h := fakeProc(t, links{"1": {"net"}, "7": {"net:5"}, "self": {"net:4"}})
	if got, err := h.ProcessNetns(); !got[5] || err != nil {
		t.Errorf("process 1 is unreadable: %v, %v", got, err)
	}
	for name, tt := range map[string]struct {
		processes links
		want      string
	}{
		"process 1 is not listed":       {links{"7": {"net:5"}}, "process 1"},
		"process 7 is unreadable":       {links{"1": {"net:1"}, "7": {"net"}}, "/7/ns/net"},
		"both are unreadable":           {links{"1": {"net"}, "7": {"net"}}, "/7/ns/net"},
		"process 11 is unreadable":      {links{"1": {"net:1"}, "11": {"net"}}, "/11/ns/net"},
		"process 7 has an invalid link": {links{"1": {"net:1"}, "7": {"net:x"}}, "net:[x]"},
	} {
		p, err := fakeProc(t, tt.processes).ProcessNetns()
		check.Error(t, err, tt.want, name, p)
	}
}

func TestBootID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	check.Equal(t, New("/proc", file).BootID(), "", "without a file")
	must.Succeed(t, os.WriteFile(file, []byte("\n"), 0o600))
	if id, err := New("/proc", file).readBootID(); err == nil {
		t.Errorf("read %q from an empty file", id)
	}
	must.Succeed(t, os.WriteFile(file, []byte("boot-1\n"), 0o600))
	check.Equal(t, New("/proc", file).BootID(), "boot-1")
}

// The agent looks at the host for as long as it runs.
func TestHostClosesWhatItOpens(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	newMounted(t, path, "10.9.8.12/24")
	netns, err := h.Netns(path)
	must.Succeed(t, err)
	descriptors.AssertClosed(t, func() {
		_, listed := h.Namespaces()
		_, read := h.AddressesIn(netns)
		_, running := h.ProcessNetns()
		_, mounted := h.MountedNetns()
		must.Succeed(t, errors.Join(listed, read, running, mounted))
	})
}
