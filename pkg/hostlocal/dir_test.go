package hostlocal

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// A mark that cannot be written may prove more than is there, so it is removed.
func TestMarkThatCannotBeWritten(t *testing.T) {
	p := lease.Pool{DataDir: t.TempDir(), Network: "cbr0"}
	d, err := Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.SetMark(3); err != nil {
		t.Fatal(err)
	}
	// A read lease on the file (fcntl(2)), as file servers take it, stops only writers.
	reader, err := os.Open(filepath.Join(Path(p), markName))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := unix.FcntlInt(reader.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Fatal(err)
	}
	if err := d.SetMark(2); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("the mark was written: %v", err)
	}
	if IsMarked(p) {
		t.Errorf("a mark of %d leases is left", readMark(Path(p)))
	}
}

// Without host-local's lock nothing is written. Flush forgets what it has removed.
func TestNothingIsWrittenWithoutTheLock(t *testing.T) {
	p := lease.Pool{DataDir: t.TempDir(), Network: "cbr0"}
	l := lease.Lease{State: lease.Bound, Pool: p, Address: netip.MustParseAddr("10.0.0.2"),
		Holder: lease.Holder{ContainerID: "c1", IfName: "eth0"}}
	d, err := Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write(l, lease.Instant{}); err != nil {
		t.Fatal(err)
	}
	unlocked, err := OpenUnlocked(p)
	if err != nil {
		t.Fatal(err)
	}
	unlocked.Remove(l.Address)
	for name, err := range map[string]error{
		"Write": unlocked.Write(l, lease.Instant{}), "SetMark": unlocked.SetMark(1), "Flush": unlocked.Flush(),
	} {
		if !errors.Is(err, errUnlocked) {
			t.Errorf("%s without the lock: %v", name, err)
		}
	}
	if !d.Has(l.Address) || IsMarked(p) {
		t.Errorf("the file exists: %v, marked: %v", d.Has(l.Address), IsMarked(p))
	}
	d.Remove(l.Address)
	if err := d.Flush(); err != nil || d.Has(l.Address) {
		t.Errorf("removed: %v, %v", !d.Has(l.Address), err)
	}
	if err := files.Write(d.FilePath(l.Address), "c2\n"); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Flush(); err != nil || !d.Has(l.Address) {
		t.Errorf("a file written later is removed: %v, %v", !d.Has(l.Address), err)
	}
}
