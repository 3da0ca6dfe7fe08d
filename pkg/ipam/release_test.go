package ipam

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// opened returns how many of host-local's files a call opens while it has the store's lock, and how
// many it opens without it.
func (w *world) opened(call func()) (locked, unlocked int) {
	w.t.Helper()
	events, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		w.t.Fatal(err)
	}
	defer unix.Close(events)
	lock, err := unix.InotifyAddWatch(events, filepath.Join(w.service.Store.Dirs().Run, "lock"),
		unix.IN_OPEN|unix.IN_CLOSE)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := unix.InotifyAddWatch(events, filepath.Join(w.dataDir, w.network), unix.IN_OPEN); err != nil {
		w.t.Fatal(err)
	}
	call()
	locks, buf := 0, make([]byte, 1<<20)
	n, err := unix.Read(events, buf)
	if err != nil {
		w.t.Fatal(err)
	}
	for at := 0; at < n; {
		ne := binary.NativeEndian // struct inotify_event of inotify(7)
		wd, mask, length := ne.Uint32(buf[at:]), ne.Uint32(buf[at+4:]), int(ne.Uint32(buf[at+12:]))
		name := strings.TrimRight(string(buf[at+unix.SizeofInotifyEvent:][:length]), "\x00")
		_, notAnAddress := netip.ParseAddr(name)
		switch {
		case wd == uint32(lock) && mask&unix.IN_OPEN != 0:
			locks++
		case wd == uint32(lock):
			locks--
		case notAnAddress == nil && locks > 0:
			locked++
		case notAnAddress == nil:
			unlocked++
		}
		at += unix.SizeofInotifyEvent + length
	}
	return locked, unlocked
}

// manyFiles makes files of host-local's in the first n addresses from 10.0.0.2 on.
func (w *world) manyFiles(n int) {
	w.t.Helper()
	dir := filepath.Join(w.dataDir, w.network)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	addr := netip.MustParseAddr("10.0.0.2")
	for i := range n {
		content := fmt.Sprintf("container-%d\r\neth0", i)
		if err := os.WriteFile(filepath.Join(dir, addr.String()), []byte(content), 0o600); err != nil {
			w.t.Fatal(err)
		}
		addr = addr.Next()
	}
}

// TestALateDelReadsNoFilesUnderTheLock verifies that a DEL and a CHECK of a container that nobody
// knows read host-local's files without the store's lock.
func TestALateDelReadsNoFilesUnderTheLock(t *testing.T) {
	w := newWorld(t, "10.0.0.0/16")
	w.manyFiles(2000)
	w.add(ask{container: "new"})
	late := lease.Attachment{ContainerID: "late", IfName: "eth0"}
	for verb, call := range map[string]func() error{
		"DEL":   func() error { return w.service.Release(t.Context(), late, w.where()) },
		"CHECK": func() error { return w.service.Verify(t.Context(), w.request(ask{container: "late"})) },
	} {
		locked, unlocked := w.opened(func() {
			if err := call(); err != nil && !errors.Is(err, ErrCheckFailed) {
				t.Fatalf("%s: %v", verb, err)
			}
		})
		if locked > 0 || unlocked < 2000 {
			t.Errorf("%s reads %d files with the lock and %d without it, want none and 2,000", verb, locked, unlocked)
		}
	}
}

// TestAdoptionOfManyFiles verifies that the cost of the first ADD on a node that host-local has
// served does not grow with the product of its files and the entries of the journal.
func TestAdoptionOfManyFiles(t *testing.T) {
	w := newWorld(t, "10.0.0.0/16")
	w.manyFiles(4000)
	began := processorTime(t)
	w.add(ask{container: "new"})
	if took := processorTime(t) - began; took > 3*time.Second {
		t.Errorf("4,000 files were adopted in %s of processor time", took)
	}
}

// processorTime returns the processor time of this process, which does not depend on the load of
// the machine.
func processorTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
