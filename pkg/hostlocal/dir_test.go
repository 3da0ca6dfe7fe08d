package hostlocal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

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
