package host

import (
	"encoding/binary"
	"errors"
	"io/fs"

	"os"
	"path/filepath"

	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

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
	must.Succeed(t, err)
	list, err := h.Namespaces()
	if err != nil || len(list) != 1 || list[0].Netns.Path != loop || !errors.Is(list[0].Err, unix.ELOOP) {
		t.Errorf("%+v, %v; want %s with an error", list, err, loop)
	}
}

func TestInvalidProc(t *testing.T) {
	file := filepath.Join(t.TempDir(), "proc")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	h := New(file, "")
	_, err := h.ProcessNetns()
	check.Is(t, err, unix.ENOTDIR, "the processes of a /proc that is a file")
	empty := fakeProc(t, links{"self": {"pid:x", "mnt:1"}, "1": {"mnt:1"}, "7": {"mnt:x"}})
	must.Succeed(t, os.WriteFile(filepath.Join(empty.proc, "self", "mountinfo"), nil, 0o600))
	_, err = empty.MountedNetns()
	check.Error(t, err, "is empty", "an empty list of mounts")
	if list, err := empty.Namespaces(); err == nil {
		t.Errorf("an empty list of mounts: %+v", list)
	}
	check.Equal(t, empty.NamespaceIDs("boot-1"), "", "an invalid link of the PID namespace")
	namespaces := fakeProc(t, links{"self": {"pid:1"}, "7": {"mnt:x"}}).Through("7")
	check.Equal(t, namespaces.NamespaceIDs("boot-1"), "", "an invalid link of the mount namespace")
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
	_, err := complete(func() ([]byte, error) { return nil, unix.EIO })
	check.Is(t, err, unix.EIO, "a list that cannot be read")
}
