package host

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"

	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// Without the id of the boot nothing is known to be of it.
func TestIsOfBoot(t *testing.T) {
	const namespaces = " pid:4026531836 mnt:4026531841"
	for _, c := range []struct {
		recorded, boot string
		want           bool
	}{
		{"boot-1" + namespaces, "boot-1", true}, {"boot-1" + namespaces, "boot", false},
		{"boot-1" + namespaces, "boot-2", false}, {"boot-1" + namespaces, "", false},
		{namespaces, "", false}, {"", "boot-1", false}, {"", "", false},
	} {
		check.Equal(t, IsOfBoot(c.recorded, c.boot), c.want, c.recorded, "of boot", c.boot)
	}
}

func TestProveView(t *testing.T) {
	h := New("/proc", DefaultBootIDFile)
	recorded := h.NamespaceIDs("boot-1")
	if !strings.HasPrefix(recorded, "boot-1 pid:") || !strings.Contains(recorded, " mnt:") {
		t.Fatalf("NamespaceIDs is %q", recorded)
	}
	must.Succeed(t, h.ProveView(recorded, "boot-1", nil), "the same namespaces")
	empty := New(t.TempDir(), "")
	for name, tt := range map[string]struct {
		host           *Host
		recorded, boot string
		want           string
	}{
		"other processes": {h, strings.Replace(recorded, "pid:", "pid:1", 1), "boot-1",
			"the plugin runs in"},
		"no boot id":                            {h, recorded, "", "boot id"},
		"no /proc":                              {empty, recorded, "boot-1", "does not show this process"},
		"through a process that does not exist": {h.Through("0"), recorded, "boot-1", "failed to read"},
	} {
		err := tt.host.ProveView(tt.recorded, tt.boot, nil)
		check.Is(t, err, ErrNotHost, name)
		check.Error(t, err, tt.want, name)
	}
	check.Equal(t, empty.NamespaceIDs("boot-1"), "", "without a /proc")
	check.Equal(t, h.NamespaceIDs(""), "", "without a boot id")
}

// links maps processes to their namespaces, see fakeProc.
type links map[string][]string

// fakeProc makes a /proc whose processes have links to namespaces: "mnt:7" for the link "mnt:[7]".
// A link without a number cannot be read. The entry "parent:5" is no link: it is the process's
// parent.
func fakeProc(t *testing.T, processes links) *Host {
	t.Helper()
	dir := t.TempDir()
	self := strconv.Itoa(os.Getpid())
	err := os.Symlink(self, filepath.Join(dir, "self"))
	for pid, links := range processes {
		if pid == "self" {
			pid = self
		}
		ns := filepath.Join(dir, pid, "ns")
		err = errors.Join(err, os.MkdirAll(ns, 0o700))
		for _, link := range links {
			kind, number, _ := strings.Cut(link, ":")
			if kind == "parent" {
				stat := fmt.Sprintf("%s (a) b) S %s 7 7 0", pid, number)
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, pid, "stat"), []byte(stat), 0o600))
				continue
			}
			if number == "" {
				err = errors.Join(err, os.WriteFile(filepath.Join(ns, kind), nil, 0o600))
				continue
			}
			err = errors.Join(err, os.Symlink(kind+":["+number+"]", filepath.Join(ns, kind)))
		}
	}
	must.Succeed(t, err)
	return New(dir, "")
}

// The initial PID namespace and the mounts of process 1 are the host's. Otherwise the plugin must
// have recorded its namespaces. The record alone is no proof, because inodes are reused.
func TestProveViewOfTheInitialNamespaces(t *testing.T) {
	const here, nested = "pid:4026531836", "pid:5"
	for name, tt := range map[string]struct {
		processes links
		recorded  string
		proven    bool
	}{
		"the initial namespaces": {links{"self": {here, "mnt:7"}, "1": {"mnt:7"}}, "", true},
		"a record of another boot": {links{"self": {here, "mnt:7"}, "1": {"mnt:7"}}, "boot-0 " + here +
			" mnt:7", true},
		"other mounts":    {links{"self": {here, "mnt:7"}, "1": {"mnt:8"}}, "", false},
		"other processes": {links{"self": {nested, "mnt:7"}, "1": {"mnt:7"}}, "", false},
		"the plugin's are the same": {links{"self": {nested, "mnt:7"}, "1": {"mnt:7"}}, "boot-1 " + nested +
			" mnt:7", true},
		"other mounts with the same inode": {links{"self": {here, "mnt:7"}, "1": {"mnt:8"}}, "boot-1 " + here +
			" mnt:7", false},
		"process 1 is unreadable":   {links{"self": {here, "mnt:7"}, "1": {"mnt"}}, "", false},
		"but kthreadd is not":       {links{"self": {here, "mnt:7"}, "1": {"mnt"}, "2": {"mnt:7"}}, "", true},
		"kthreadd has other mounts": {links{"self": {here, "mnt:7"}, "1": {"mnt"}, "2": {"mnt:8"}}, "", false},
		"process 2 of a container": {links{"self": {nested, "mnt:7"}, "1": {"mnt"}, "2": {"mnt:7"}}, "boot-1 " +
			nested + " mnt:7", false},
		"kthreadd is unreadable as well": {links{"self": {here, "mnt:7"}, "1": {"mnt"}, "2": {"mnt"}}, "", false},
	} {
		err := fakeProc(t, tt.processes).ProveView(tt.recorded, "boot-1", nil)
		check.Equal(t, errors.Is(err, syscall.EINVAL), strings.Contains(name, "unreadable"), name, err)
		if (err == nil) != tt.proven || err != nil && !errors.Is(err, ErrNotHost) {
			t.Errorf("%s: %v, want proven: %v", name, err, tt.proven)
		}
	}
}

// Without hostPID no parent of a container's first process is in its PID namespace, neither in one
// of its own nor in the pod's. With hostPID the runtime's process is its ancestor there.
func TestProveViewInAContainerOfTheRuntime(t *testing.T) {
	self := func(links ...string) []string { return append(links, "pid:5", "mnt:9") }
	for name, tt := range map[string]struct {
		processes links
		proven    bool
	}{
		"the runtime's process is the parent": {links{"self": self("parent:70"), "70": {"mnt:7"}, "1": {"mnt:7"}},
			true},
		"behind a process of the container": {links{"self": self("parent:80"), "80": {"mnt:9", "parent:70"},
			"70": {"mnt:7"}, "1": {"mnt:7"}}, true},
		"a PID namespace of the container": {links{"self": self("parent:0"), "1": {"mnt:9"}}, false},
		"a process of the container is the first": {links{"self": self("parent:1"), "1": {"mnt:9", "parent:0"}},
			false},
		"a PID namespace of the pod":   {links{"self": self("parent:0"), "1": {"mnt:7", "parent:0"}}, false},
		"a parent that cannot be read": {links{"self": self("parent:70"), "70": {"mnt"}, "1": {"mnt:7"}}, false},
		"no parent is known":           {links{"self": self(), "1": {"mnt:7"}}, false},
	} {
		if err := fakeProc(t, tt.processes).Through("1").ProveView("", "boot-1", nil); (err == nil) != tt.proven ||
			err != nil && !errors.Is(err, ErrNotHost) {
			t.Errorf("%s: %v, want proven: %v", name, err, tt.proven)
		}
	}
	processes := links{"self": self("parent:70"), "70": {"mnt:7"}, "1": {"mnt:7"}}
	if err := fakeProc(t, processes).ProveView("", "boot-1", nil); err == nil {
		t.Error("paths are resolved in the container, and the view is proven")
	}
}

// If the runtime has mounts of its own, the namespace of a bound lease at its path here proves that
// its mounts are propagated.
func TestProveViewInOtherMounts(t *testing.T) {
	h := testHost(t)
	boot := h.BootID()
	dir := t.TempDir() // like the directory of a runtime's namespaces
	err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED, ""))
	must.Succeed(t, err)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	alive, gone := filepath.Join(dir, "alive"), filepath.Join(dir, "gone")
	newMounted(t, alive)
	n, err := h.Netns(alive)
	must.Succeed(t, err)
	bound := func(n lease.Netns, boot string) iter.Seq[lease.Lease] {
		return slices.Values([]lease.Lease{{State: lease.Bound, Holder: lease.Holder{Netns: n, BootID: boot}}})
	}
	own := h.NamespaceIDs(boot)
	pid, _, _ := strings.Cut(own, " mnt:")
	recorded := pid + " mnt:1"
	link := filepath.Join(dir, "link")
	must.Succeed(t, os.Symlink("/proc/self/ns/net", link))
	process, err := h.Netns(link)
	must.Succeed(t, err)
	for name, leases := range map[string]iter.Seq[lease.Lease]{
		"no bound lease":                nil,
		"nothing at its path":           bound(lease.Netns{Path: gone, Dev: n.Dev, Ino: n.Ino}, boot),
		"another namespace at its path": bound(lease.Netns{Path: alive, Dev: n.Dev, Ino: n.Ino + 1}, boot),
		"an unknown namespace":          bound(lease.Netns{Path: alive}, boot),
		"of another boot":               bound(n, "boot-0"),
		"a process has it and no mount": bound(process, boot),
	} {
		check.Is(t, h.ProveView(recorded, boot, leases), ErrNotHost, name)
	}
	proc, self := t.TempDir(), strconv.Itoa(os.Getpid()) // without mountinfo
	err = os.Symlink(self, filepath.Join(proc, "self"))
	for _, pid := range []string{self, "1"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(proc, pid), 0o700),
			os.Symlink(filepath.Join("/proc", pid, "ns"), filepath.Join(proc, pid, "ns")))
	}
	must.Succeed(t, err)
	blind := New(proc, DefaultBootIDFile)
	err = blind.ProveView(recorded, boot, bound(n, boot))
	check.Is(t, err, ErrNotHost, "without a list of mounts")
	check.Is(t, err, fs.ErrNotExist, "without a list of mounts")
	others := strings.Replace(recorded, "pid:", "pid:1", 1)
	check.Is(t, h.ProveView(others, boot, bound(n, boot)), ErrNotHost, "other processes")
	must.Succeed(t, h.ProveView(recorded, boot, bound(n, boot)), "at its path")
	must.Succeed(t, h.ProveView(recorded, boot, nil), "a second time, without a lease")
	check.Is(t, h.ProveView(pid+" mnt:2", boot, nil), ErrNotHost, "the runtime has other mounts now")
}

// Mounts that are not those of process 1 are proven by a lease. If they are the plugin's, its mount
// need not be propagated.
func TestProveViewInThePluginsMounts(t *testing.T) {
	h := testHost(t)
	boot := h.BootID()
	dir := t.TempDir()
	err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	must.Succeed(t, err)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "netns")
	newMounted(t, path)
	n, err := h.Netns(path)
	must.Succeed(t, err)
	other := fakeProc(t, links{"1": {"mnt:1"}})
	process := filepath.Join(other.proc, strconv.Itoa(os.Getpid()))
	must.Succeed(t, errors.Join(os.Mkdir(process, 0o700), os.Symlink("/proc/self/ns", filepath.Join(process, "ns")),
		os.Symlink("/proc/self/mountinfo", filepath.Join(process, "mountinfo"))))
	own := other.NamespaceIDs(boot)
	pid, _, _ := strings.Cut(own, " mnt:")
	bound := slices.Values([]lease.Lease{{State: lease.Bound, Holder: lease.Holder{Netns: n, BootID: boot}}})
	check.Is(t, other.ProveView(own, boot, nil), ErrNotHost, "without a lease")
	check.Is(t, other.ProveView(pid+" mnt:1", boot, bound), ErrNotHost, "a mount that is not propagated")
	must.Succeed(t, other.ProveView(own, boot, bound), "the plugin has the same mounts")
}
