package hostlocal

import (
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// openWithLease returns the directory of a new pool, and a bound lease that has no file in it.
func openWithLease(t *testing.T) (*Dir, lease.Lease) {
	t.Helper()
	p := lease.Pool{DataDir: t.TempDir(), Network: "cbr0"}
	d, err := Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, lease.Lease{
		Pool: p, Address: testAddress, State: lease.Bound,
		Holder: lease.Holder{ContainerID: "c1", IfName: "eth0"},
	}
}

// TestReadReadsOnce verifies that a call gets one answer about a file, which changes only by its
// own writes.
func TestReadReadsOnce(t *testing.T) {
	d, l := openWithLease(t)
	want := func(when, content string, exists bool) {
		t.Helper()
		if f, found, err := d.Read(testAddress); f.Content != content || found != exists || err != nil {
			t.Errorf("%s: %q %t %v, want %q %t", when, f.Content, found, err, content, exists)
		}
	}
	want("at first", "", false)
	if err := d.Write(l, now); err != nil {
		t.Fatal(err)
	}
	want("after a write", "c1\r\neth0", true)
	other, err := OpenUnlocked(l.Pool)
	if err != nil {
		t.Fatal(err)
	}
	other.lock = d.lock // another process writes
	if err := other.Remove(testAddress); err != nil {
		t.Fatal(err)
	}
	want("after another's change", "c1\r\neth0", true)
	if err := d.Remove(testAddress); err != nil {
		t.Fatal(err)
	}
	want("after a removal", "", false)
}
