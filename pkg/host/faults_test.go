package host

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/descriptors"
)

// With too few descriptors every operation returns the kernel's error: what could not be read is
// never missing from a result.
func TestFewDescriptors(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	newMounted(t, path, "10.9.8.13/24")
	n, err := h.Netns(path)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("10.9.8.13")
	for name, op := range map[string]func() (complete bool, err error){
		"Netns": func() (bool, error) {
			got, err := h.Netns(path)
			return got == n, err
		},
		"AddressesIn": func() (bool, error) {
			list, err := h.AddressesIn(n)
			return slices.Contains(list, addr), err
		},
		"Namespaces": func() (bool, error) {
			list, err := h.Namespaces()
			for _, ns := range list {
				err = errors.Join(err, ns.Err)
			}
			got, _ := namespaceAt(list, path)
			return len(got.Addresses) == 1, err
		},
		"Link": func() (bool, error) {
			l, err := h.Link(path, "eth0")
			return l.Kind == "veth", err
		},
		"SetMAC": func() (bool, error) { return true, h.SetMAC(path, "eth0", mac(t, "02:00:00:00:00:09")) },
		"ForgetNeighbours": func() (bool, error) {
			return true, h.ForgetNeighbours([]netip.Addr{addr})
		},
		"ProcessNetns": func() (bool, error) {
			p := h.ProcessNetns()
			return len(p.inodes) > 0, p.Incomplete()
		},
		"MountedNetns": func() (bool, error) {
			p := h.MountedNetns()
			return p.inodes[n.Ino], p.Incomplete()
		},
		"BootID": func() (bool, error) {
			id, err := h.readBootID()
			return id != "", err
		},
		"OpenDirPath": func() (bool, error) {
			dir, err := OpenDirPath("/")
			if err == nil {
				_, err = os.Stat(dir)
			}
			return true, err
		},
	} {
		failed, succeeded := false, false
		for free := range 8 {
			descriptors.Limit(t, free, func() {
				complete, err := op()
				failed, succeeded = failed || err != nil, err == nil
				if err == nil && !complete || err != nil && !errors.Is(err, unix.EMFILE) {
					t.Errorf("%s with %d descriptors: complete: %v, %v", name, free, complete, err)
				}
			})
		}
		if !failed || !succeeded {
			t.Errorf("%s: failed with few descriptors: %v, succeeded with enough: %v", name, failed, succeeded)
		}
	}
}

// A path that cannot be followed is not evidence that its namespace has ended.
func TestUnreadableMount(t *testing.T) {
	testHost(t)
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	h := fakeProc(t, links{"self": {"pid:5"}})
	err := errors.Join(os.Symlink("loop", loop), os.WriteFile(filepath.Join(h.proc, "self", "mountinfo"), []byte(
		"36 35 0:4 net:[7] "+loop+" rw - nsfs nsfs rw\n"+
			"36 35 0:4 net:[8] "+dir+" rw - nsfs nsfs rw\n"+ // covered by another mount
			"36 35 0:4 net:[9] "+loop+"-gone rw - nsfs nsfs rw\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	list, err := h.Namespaces()
	if err != nil || len(list) != 1 || list[0].Netns.Path != loop || !errors.Is(list[0].Err, unix.ELOOP) {
		t.Errorf("%+v, %v; want %s with an error", list, err, loop)
	}
}

// Without its /proc/thread-self no namespace can be entered.
func TestNamespacesWithoutThreadSelf(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	newMounted(t, path)
	n, err := h.Netns(path)
	if err != nil {
		t.Fatal(err)
	}
	blind := fakeProc(t, links{"self": {"pid:5"}})
	list := blind.readAll([]lease.Netns{n, {Path: "b"}})
	if len(list) != 2 || list[0].Netns != n || !errors.Is(list[0].Err, fs.ErrNotExist) ||
		list[1].Netns.Path != "b" || list[1].Err == nil {
		t.Errorf("%+v; want both with errors", list)
	}
}

func TestInvalidProc(t *testing.T) {
	file := filepath.Join(t.TempDir(), "proc")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := New(file, "")
	if err := h.ProcessNetns().Incomplete(); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("the processes of a /proc that is a file: %v", err)
	}
	empty := fakeProc(t, links{"self": {"pid:x", "mnt:1"}, "1": {"mnt:1"}, "7": {"mnt:x"}})
	if err := os.WriteFile(filepath.Join(empty.proc, "self", "mountinfo"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := empty.MountedNetns().Incomplete(); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("an empty list of mounts: %v", err)
	}
	if list, err := empty.Namespaces(); err == nil {
		t.Errorf("an empty list of mounts: %+v", list)
	}
	if ids := empty.NamespaceIDs("boot-1"); ids != "" {
		t.Errorf("an invalid link of the PID namespace: %q", ids)
	}
	if ids := fakeProc(t, links{"self": {"pid:1"}, "7": {"mnt:x"}}).Through("7").NamespaceIDs("boot-1"); ids != "" {
		t.Errorf("an invalid link of the mount namespace: %q", ids)
	}
}

func TestIsNothing(t *testing.T) {
	for _, err := range []error{unix.ENOENT, unix.ENOTDIR, unix.ESRCH} {
		if !isNothing(&fs.PathError{Err: err}) {
			t.Errorf("%v: there may be something", err)
		}
	}
	for _, err := range []error{nil, unix.EIO, unix.EACCES, unix.EPERM, unix.ELOOP, unix.EMFILE, unix.ESTALE} {
		if isNothing(err) {
			t.Errorf("%v: there is nothing", err)
		}
	}
}

// A list that changes while it is read is read again.
func TestCompleteReadsAgain(t *testing.T) {
	list := func(flags uint16) []byte {
		b := binary.NativeEndian.AppendUint32(nil, 2*unix.NLMSG_HDRLEN)
		b = binary.NativeEndian.AppendUint16(b, unix.RTM_NEWADDR)
		b = append(binary.NativeEndian.AppendUint16(b, flags), make([]byte, 24)...)
		b = binary.NativeEndian.AppendUint32(b, unix.NLMSG_HDRLEN)
		return append(b, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	for name, c := range map[string]struct {
		interrupted, reads int
		want               error
	}{
		"not changed":        {0, 1, nil},
		"changed four times": {4, 5, nil},
		"changed every time": {99, 5, errChanged},
	} {
		reads := 0
		got, err := complete(func() ([]byte, error) {
			if reads++; reads <= c.interrupted {
				return list(unix.NLM_F_MULTI | unix.NLM_F_DUMP_INTR), nil
			}
			return list(unix.NLM_F_MULTI), nil
		})
		if reads != c.reads || !errors.Is(err, c.want) || err == nil && len(got) != 2 {
			t.Errorf("%s: %d reads, %v, %v", name, reads, got, err)
		}
	}
	if _, err := complete(func() ([]byte, error) { return nil, unix.EIO }); !errors.Is(err, unix.EIO) {
		t.Errorf("a list that cannot be read: %v", err)
	}
}

// The socket of a request is closed.
func TestChangesCloseWhatTheyOpen(t *testing.T) {
	h := testHost(t)
	path := filepath.Join(t.TempDir(), "netns")
	newMounted(t, path)
	descriptors.Limit(t, 8, func() {
		for range 9 {
			if err := h.SetMAC(path, "eth0", mac(t, "02:00:00:00:00:09")); err != nil {
				t.Fatal(err)
			}
			if err := h.ForgetNeighbours([]netip.Addr{netip.MustParseAddr("10.9.8.14")}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
