package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func TestOnlyANetworkNamespaceIsOne(t *testing.T) {
	h := testHost(t)
	dir := t.TempDir()
	alive := filepath.Join(dir, "alive")
	mounted(t, alive)
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Netns(loop); err == nil || errors.Is(err, ErrNotNetns) {
		t.Errorf("it cannot be told what is there: %v", err)
	}
	fifo := filepath.Join(dir, "fifo") // opening one must not hang
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		alive: true, "/proc/thread-self/ns/net": true,
		plain: false, fifo: false, dir: false, "/proc/thread-self/ns/mnt": false, filepath.Join(dir, "gone"): false, "": false,
	} {
		n, err := h.Netns(path)
		if (err == nil) != want || want != (n.Ino != 0) || n.Path != path {
			t.Errorf("%s: %+v, %v", path, n, err)
		}
		if err != nil && !errors.Is(err, ErrNotNetns) {
			t.Errorf("%s: %v is of no known kind", path, err)
		}
	}
}

// The life of one sandbox, as the three looks see it.
func TestEvidenceOfLife(t *testing.T) {
	h := testHost(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "netns")
	mounted(t, path)
	n, err := h.Netns(path)
	if err != nil {
		t.Fatal(err)
	}
	holder := lease.Holder{ContainerID: "c1", IfName: "eth0", Netns: n, BootID: "boot-1"}
	told := "" // why it cannot be told whether it is gone
	see := func(story string, boot string, look lease.Liveness, gone bool) {
		t.Helper()
		if l := h.QuickState(holder, boot); l != look {
			t.Errorf("%s: the look says %s, want %s", story, l, look)
		}
		g, err := h.PathGone(holder)
		if g != gone || (err != nil) != (told != "") || err != nil && !strings.Contains(err.Error(), told) {
			t.Errorf("%s: gone is %v, %v; want %v", story, g, err, gone)
		}
	}
	see("mounted", "boot-1", lease.Alive, false)
	see("mounted, in another boot", "boot-2", lease.Dead, false)
	see("mounted, in a boot that nobody knows", "", lease.Alive, false)
	if err := unix.Unmount(path, 0); err != nil {
		t.Fatal(err)
	}
	see("unmounted: a file stands there", "boot-1", lease.Unknown, true)
	mounted(t, path)
	if again, err := h.Netns(path); err == nil && again.Ino != n.Ino {
		see("another one at its path", "boot-1", lease.Unknown, true)
	}
	if err := errors.Join(unix.Unmount(path, 0), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	see("removed", "boot-1", lease.Unknown, true)
	if err := os.Symlink("netns", path); err != nil { // to itself
		t.Fatal(err)
	}
	told = "too many levels of symbolic links"
	see("a path that cannot be resolved", "boot-1", lease.Unknown, false)
	see("removed, in a boot that nobody knows", "", lease.Unknown, false)
	told, holder.Netns = "never seen", lease.Netns{Path: path}
	see("never seen alive: nothing is ever proven", "boot-1", lease.Unknown, false)
	see("but by a boot", "boot-2", lease.Dead, false)
	holder.BootID = ""
	see("bound in a boot that nobody knows", "boot-2", lease.Unknown, false)
}

func TestProcesses(t *testing.T) {
	h := testHost(t)
	var n lease.Netns
	running(t, func() (err error) {
		n, err = h.Netns("/proc/thread-self/ns/net")
		return err
	})
	if got := h.ProcessNetns().Liveness(n); got != lease.Alive {
		t.Errorf("a process lives there, and it is %s", got)
	}
	for story, c := range map[string]struct {
		p    NetnsSet
		n    lease.Netns
		want lease.Liveness
	}{
		"none does":                     {NewNetnsSet(nil, 1, 2), lease.Netns{Ino: 3}, lease.Dead},
		"not all could be asked":        {NewNetnsSet(fs.ErrPermission, 1, 2), lease.Netns{Ino: 3}, lease.Unknown},
		"not all, but one that does":    {NewNetnsSet(fs.ErrPermission, 1, 3), lease.Netns{Ino: 3}, lease.Alive},
		"no namespace was seen":         {NewNetnsSet(nil), lease.Netns{}, lease.Unknown},
		"there is no /proc to look at":  {New(t.TempDir(), "").ProcessNetns(), lease.Netns{Ino: 3}, lease.Unknown},
		"a /proc that cannot be opened": {New("/does-not-exist", "").ProcessNetns(), lease.Netns{Ino: 3}, lease.Unknown},
	} {
		if got := c.p.Liveness(c.n); got != c.want {
			t.Errorf("%s: %s, want %s", story, got, c.want)
		}
	}
}

// Process 1 is in the host's own namespace, which no lease has, so it need not be looked at. Any other
// process may be in a sandbox.
func TestProcessOneMayBeConfined(t *testing.T) {
	old := lease.Netns{Ino: 3}
	h := fakeProc(t, links{"1": {"net"}, "7": {"net:5"}, "self": {"net:4"}})
	if got := h.ProcessNetns(); got.Liveness(old) != lease.Dead || got.Liveness(lease.Netns{Ino: 5}) != lease.Alive {
		t.Errorf("process 1 cannot be looked at: %s, %v", got.Liveness(old), got.Incomplete())
	}
	for story, tt := range map[string]struct {
		processes links
		want      string
	}{
		"process 1 is not listed":           {links{"7": {"net:5"}}, "process 1"},
		"process 7 cannot be looked at":     {links{"1": {"net:1"}, "7": {"net"}}, "/7/ns/net"},
		"neither of them can be looked at":  {links{"1": {"net"}, "7": {"net"}}, "/7/ns/net"},
		"process 11 cannot be looked at":    {links{"1": {"net:1"}, "11": {"net"}}, "/11/ns/net"},
		"process 7 is in no such namespace": {links{"1": {"net:1"}, "7": {"net:x"}}, "net:[x]"},
	} {
		p := fakeProc(t, tt.processes).ProcessNetns()
		if p.Liveness(old) != lease.Unknown || p.Incomplete() == nil || !strings.Contains(p.Incomplete().Error(), tt.want) {
			t.Errorf("%s: %s, %v", story, p.Liveness(old), p.Incomplete())
		}
	}
}

func TestTheBootID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	if id := New("/proc", file).BootID(); id != "" {
		t.Errorf("read %q from nowhere", id)
	}
	if err := os.WriteFile(file, []byte("boot-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if id := New("/proc", file).BootID(); id != "boot-1" {
		t.Errorf("read %q", id)
	}
}
