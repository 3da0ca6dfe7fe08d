package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
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
		"change": func() (bool, error) {
			err := change(unix.RTM_DELNEIGH, neighbour{family: unix.AF_INET, link: 1, addr: addr}.request())
			if errors.Is(err, unix.ENOENT) {
				err = nil // there is no such neighbour
			}
			return true, err
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
	if found, _, err := h.processNamespaces(); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("the namespaces of a /proc that is a file: %v, %v", found, err)
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

// netlinkMessage returns one message as the kernel writes it.
func netlinkMessage(kind, flags uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	return append(append(b, make([]byte, 8)...), body...)
}

func TestCompleteReadsAgain(t *testing.T) {
	whole, changed := netlinkMessage(1, 0, []byte("whole...")), netlinkMessage(1, unix.NLM_F_DUMP_INTR, nil)
	for name, c := range map[string]struct {
		interrupted, reads int
		want               string // part of the error; "" for none
	}{
		"not changed":        {0, 1, ""},
		"changed four times": {4, 5, ""},
		"changed every time": {99, 5, "kept changing"},
	} {
		reads := 0
		list, err := complete(func() ([]byte, error) {
			if reads++; reads <= c.interrupted {
				return slices.Concat(netlinkMessage(1, 0, nil), changed), nil
			}
			return whole, nil
		})
		if reads != c.reads || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) ||
			err == nil && (len(list) != 1 || string(list[0].Data) != "whole...") {
			t.Errorf("%s: %d reads, %v, %v", name, reads, list, err)
		}
	}
	if _, err := complete(func() ([]byte, error) { return whole, unix.EIO }); !errors.Is(err, unix.EIO) {
		t.Errorf("a list that cannot be read: %v", err)
	}
	if list, err := complete(func() ([]byte, error) { return whole[:20], nil }); err == nil {
		t.Errorf("a list that is cut off: %v", list)
	}
}

func TestParseAck(t *testing.T) {
	ack := func(code int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(code)) }
	for name, c := range map[string]struct {
		answer []byte
		want   error
	}{
		"success":  {netlinkMessage(unix.NLMSG_ERROR, 0, ack(0)), nil},
		"an error": {netlinkMessage(unix.NLMSG_ERROR, 0, ack(-int32(unix.EPERM))), unix.EPERM},
		"after another message": {
			slices.Concat(netlinkMessage(9, 0, ack(-1)), netlinkMessage(unix.NLMSG_ERROR, 0, ack(0))), nil},
		"that is cut off": {netlinkMessage(unix.NLMSG_ERROR, 0, ack(0))[:16], unix.EINVAL},
	} {
		if err := parseAck(c.answer); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for name, answer := range map[string][]byte{
		"nothing": nil, "another message": netlinkMessage(9, 0, ack(0)),
		"without a code": netlinkMessage(unix.NLMSG_ERROR, 0, nil),
	} {
		if err := parseAck(answer); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := change(unix.RTM_DELNEIGH, make([]byte, 1<<24)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a request that cannot be sent: %v", err)
	}
}

func TestAttributes(t *testing.T) {
	all := []attribute{{1, []byte{}}, {2, []byte("a")}, {3, []byte("abcd")}, {4, []byte{}}}
	var b []byte
	for _, a := range all {
		if b = appendAttribute(b, a.kind, a.value); len(b)%unix.NLMSG_ALIGNTO != 0 {
			t.Errorf("%v ends at %d", a, len(b))
		}
	}
	if want := 4 + 8 + 8 + 4; len(b) != want {
		t.Errorf("%d bytes, want %d", len(b), want)
	}
	if got := attributes(b); !reflect.DeepEqual(got, all) {
		t.Errorf("%v became %v", all, got)
	}
	if got := attributes(b[:len(b)-1]); len(got) != 3 {
		t.Errorf("the last one is cut off: %v", got)
	}
}

// The fixed part of a message is read even if no attribute follows.
func TestMessagesWithoutAttributes(t *testing.T) {
	n := neighbour{family: unix.AF_INET, link: 3}
	if got, ok := parseNeighbour(n.request()[:sizeofNdMsg]); ok || got != n {
		t.Errorf("neighbour %+v, %v; want %+v, false", got, ok, n)
	}
	if got, ok := parseNeighbour(n.request()[:sizeofNdMsg-1]); ok || got != (neighbour{}) {
		t.Errorf("a neighbour that is cut off: %+v, %v", got, ok)
	}
	b := make([]byte, unix.SizeofIfInfomsg)
	b[4] = 3
	if l, name, ok := parseLink(b); ok || name != "" || l.index != int(binary.NativeEndian.Uint32(b[4:])) {
		t.Errorf("link %+v %q, %v", l, name, ok)
	}
	if l, name, ok := parseLink(b[:len(b)-1]); ok || name != "" || !reflect.DeepEqual(l, Link{}) {
		t.Errorf("a link that is cut off: %+v %q, %v", l, name, ok)
	}
	if got := addressesOf(nil); len(got) != 0 {
		t.Errorf("an address that is cut off: %v", got)
	}
	broadcast := appendAttribute(make([]byte, unix.SizeofIfAddrmsg), unix.IFA_BROADCAST, []byte{10, 0, 0, 255})
	if got := addressesOf(appendAttribute(broadcast, unix.IFA_LOCAL, []byte{10, 0, 0, 1})); len(got) != 1 ||
		!bytes.Equal(got[0].AsSlice(), net.IPv4(10, 0, 0, 1).To4()) {
		t.Errorf("addresses %v, want 10.0.0.1", got)
	}
	if got := addressesOf(appendAttribute(broadcast, unix.IFA_LOCAL, []byte{10, 0})); len(got) != 0 {
		t.Errorf("an invalid address: %v", got)
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
			gone := neighbour{family: unix.AF_INET, link: 1, addr: netip.MustParseAddr("10.9.8.14")}
			if err := change(unix.RTM_DELNEIGH, gone.request()); !errors.Is(err, unix.ENOENT) {
				t.Fatalf("a neighbour that does not exist: %v", err)
			}
		}
	})
}
