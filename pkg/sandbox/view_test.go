package sandbox

import (
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func TestTheViewIsProvenByTheSameWord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(file, []byte("boot-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := New("/proc", file)
	word := h.NamespaceIDs("boot-1")
	if !strings.HasPrefix(word, "boot-1 pid:") || !strings.Contains(word, " mnt:") {
		t.Fatalf("its word is %q", word)
	}
	if err := h.ProveView(word, "boot-1", nil); err != nil {
		t.Errorf("the plugin's word is ours: %v", err)
	}
	pid, _, _ := strings.Cut(word, " mnt:")
	for story, tt := range map[string]struct {
		host       *Host
		word, boot string
		want       string
	}{
		"other mounts":                    {h, pid + " mnt:1", "boot-1", "the plugin runs in"},
		"other processes":                 {h, strings.Replace(word, "pid:", "pid:1", 1), "boot-1", "the plugin runs in"},
		"no boot id":                      {h, word, "", "boot id"},
		"no /proc":                        {New(t.TempDir(), file), word, "boot-1", "other processes"},
		"through a process not to be had": {h.Through("0"), word, "boot-1", "cannot be read"},
	} {
		if err := tt.host.ProveView(tt.word, tt.boot, nil); !errors.Is(err, ErrNotHost) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", story, err, tt.want)
		}
	}
	if New(t.TempDir(), file).NamespaceIDs("boot-1") != "" || h.NamespaceIDs("") != "" {
		t.Error("a word of nothing")
	}
}

// links are what processes show of their namespaces.
type links map[string][]string

// fakeProc is a /proc in which processes have links to namespaces, "mnt:7" for one that
// reads "mnt:[7]". A link without a number is one that cannot be read.
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
			if number == "" {
				err = errors.Join(err, os.WriteFile(filepath.Join(ns, kind), nil, 0o600))
				continue
			}
			err = errors.Join(err, os.Symlink(kind+":["+number+"]", filepath.Join(ns, kind)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return New(dir, "")
}

// The machine's first processes and the mounts of process 1 are the host's without anybody's
// word; elsewhere the plugin has to have left one. Its word alone may be that of other mounts
// by now, for numbers are given again.
func TestFirstNamespaces(t *testing.T) {
	const here, nested = "pid:4026531836", "pid:5"
	for story, tt := range map[string]struct {
		processes links
		word      string
		proven    bool
	}{
		"the first of all":          {links{"self": {here, "mnt:7"}, "1": {"mnt:7"}}, "", true},
		"a word of another boot":    {links{"self": {here, "mnt:7"}, "1": {"mnt:7"}}, "boot-0 " + here + " mnt:7", true},
		"other mounts":              {links{"self": {here, "mnt:7"}, "1": {"mnt:8"}}, "", false},
		"other processes":           {links{"self": {nested, "mnt:7"}, "1": {"mnt:7"}}, "", false},
		"the plugin says so":        {links{"self": {nested, "mnt:7"}, "1": {"mnt:7"}}, "boot-1 " + nested + " mnt:7", true},
		"mounts with its number":    {links{"self": {here, "mnt:7"}, "1": {"mnt:8"}}, "boot-1 " + here + " mnt:7", false},
		"process 1 is hidden":       {links{"self": {here, "mnt:7"}, "1": {"mnt"}}, "", false},
		"but not the kernel":        {links{"self": {here, "mnt:7"}, "1": {"mnt"}, "2": {"mnt:7"}}, "", true},
		"the kernel is elsewhere":   {links{"self": {here, "mnt:7"}, "1": {"mnt"}, "2": {"mnt:8"}}, "", false},
		"2 of a container":          {links{"self": {nested, "mnt:7"}, "1": {"mnt"}, "2": {"mnt:7"}}, "boot-1 " + nested + " mnt:7", false},
		"the kernel cannot be read": {links{"self": {here, "mnt:7"}, "1": {"mnt"}, "2": {"mnt"}}, "", false},
	} {
		err := fakeProc(t, tt.processes).ProveView(tt.word, "boot-1", nil)
		if (err == nil) != tt.proven || err != nil && !errors.Is(err, ErrNotHost) {
			t.Errorf("%s: %v, want proven: %v", story, err, tt.proven)
		}
	}
}

func FuzzSpaceInode(f *testing.F) {
	f.Add("net:[4026531840]", "net")
	f.Add("mnt:[1]", "net")
	f.Fuzz(func(t *testing.T, link, kind string) {
		if n, ok := spaceInode(link, kind); ok && (!strings.HasPrefix(link, kind) || n == 0 && !strings.Contains(link, "0")) {
			t.Errorf("%q of kind %q is %d", link, kind, n)
		}
	})
}

func TestTwoLooksSeeMoreThanOne(t *testing.T) {
	a, b := NewNetnsSet(nil, 1, 2), NewNetnsSet(nil, 2, 3)
	both := a.Union(b)
	for ino := range uint64(5) {
		if want := ino >= 1 && ino <= 3; both.inodes[ino] != want {
			t.Errorf("%d is in it: %v", ino, both.inodes[ino])
		}
	}
	if both.Incomplete() != nil || a.Union(NewNetnsSet(fs.ErrPermission)).Incomplete() == nil || (NetnsSet{}).Union(a).Incomplete() == nil {
		t.Error("it is complete if both are")
	}
	if a.inodes[3] {
		t.Error("the first look has changed")
	}
}

// Where the runtime has mounts of its own, that its namespaces are found here at their paths
// proves that they are mounted here, too.
func TestOtherMountsAreProvenByALivingNamespace(t *testing.T) {
	h := testHost(t)
	boot := h.BootID()
	dir := t.TempDir() // as the runtime's directory of namespaces is on a node
	err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	alive, gone := filepath.Join(dir, "alive"), filepath.Join(dir, "gone")
	mounted(t, alive)
	n, err := h.Netns(alive)
	if err != nil {
		t.Fatal(err)
	}
	bound := func(n lease.Netns, boot string) iter.Seq[lease.Lease] {
		return slices.Values([]lease.Lease{{State: lease.Bound, Holder: lease.Holder{Netns: n, BootID: boot}}})
	}
	own := h.NamespaceIDs(boot)
	pid, _, _ := strings.Cut(own, " mnt:")
	word := pid + " mnt:1"
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/proc/self/ns/net", link); err != nil {
		t.Fatal(err)
	}
	process, err := h.Netns(link)
	if err != nil {
		t.Fatal(err)
	}
	for story, leases := range map[string]iter.Seq[lease.Lease]{
		"none is bound":                       nil,
		"its path leads nowhere":              bound(lease.Netns{Path: gone, Dev: n.Dev, Ino: n.Ino}, boot),
		"another one is at its path":          bound(lease.Netns{Path: alive, Dev: n.Dev, Ino: n.Ino + 1}, boot),
		"none was seen":                       bound(lease.Netns{Path: alive}, boot),
		"of another boot":                     bound(n, "boot-0"),
		"a process has it, and no mount does": bound(process, boot),
	} {
		if err := h.ProveView(word, boot, leases); !errors.Is(err, ErrNotHost) {
			t.Errorf("%s: %v, want ErrNotHost", story, err)
		}
	}
	proc, self := t.TempDir(), strconv.Itoa(os.Getpid()) // without mountinfo
	err = os.Symlink(self, filepath.Join(proc, "self"))
	for _, pid := range []string{self, "1"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(proc, pid), 0o700),
			os.Symlink(filepath.Join("/proc", pid, "ns"), filepath.Join(proc, pid, "ns")))
	}
	if err != nil {
		t.Fatal(err)
	}
	blind := New(proc, DefaultBootIDFile)
	if err := blind.ProveView(word, boot, bound(n, boot)); !errors.Is(err, ErrNotHost) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mounts cannot be listed: %v", err)
	}
	if err := h.ProveView(strings.Replace(word, "pid:", "pid:1", 1), boot, bound(n, boot)); !errors.Is(err, ErrNotHost) {
		t.Errorf("other processes: %v, want ErrNotHost", err)
	}
	if err := h.ProveView(word, boot, bound(n, boot)); err != nil {
		t.Errorf("a living one is at its path: %v", err)
	}
	if err := h.ProveView(word, boot, nil); err != nil {
		t.Errorf("what was proven once stays so: %v", err)
	}
	if err := h.ProveView(pid+" mnt:2", boot, nil); !errors.Is(err, ErrNotHost) {
		t.Errorf("the runtime has moved to other mounts: %v, want ErrNotHost", err)
	}
}
