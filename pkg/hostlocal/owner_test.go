package hostlocal

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func TestIsForeign(t *testing.T) {
	bound := lease.Lease{
		State: lease.Bound, Holder: lease.Holder{ContainerID: "c1", IfName: "eth0"},
		BoundAt: lease.Instant{Wall: now.Wall, Boot: now.Boot, BootID: "boot-1"},
	}
	later := now.Wall.Add(time.Minute)
	tests := []struct {
		name    string
		content string
		age     time.Duration // before the lease was bound
		boot    string
		owners  []lease.Attachment
		live    bool
		want    bool
	}{
		{name: "its holder's", content: "c1\r\neth0", boot: "boot-1"},
		{name: "its holder's, before v0.8.0", content: "c1", boot: "boot-1"},
		{name: "a hold", content: "#held db/db-0 eth0 firm 3600 1795258800 u1\r\neth0", boot: "boot-1"},
		{name: "empty", boot: "boot-1"},
		{name: "another container's", content: "c2\r\neth0", boot: "boot-1", want: true},
		{name: "another interface's", content: "c1\r\nnet1", boot: "boot-1", want: true},
		{name: "not as host-local writes", content: "?", boot: "boot-1", want: true},
		{name: "older, within the boot", content: "c2\r\neth0", age: time.Hour, boot: "boot-1", want: true},
		{name: "older, after a boot", content: "c2\r\neth0", age: time.Hour, boot: "boot-2"},
		{name: "older, after a boot, and its container lives", content: "c2\r\neth0", age: time.Hour, boot: "boot-2",
			live: true, want: true},
		{name: "newer, after a boot", content: "c2\r\neth0", age: -time.Hour, boot: "boot-2", want: true},
		{name: "older, and the boot id is unknown", content: "c2\r\neth0", age: time.Hour, want: true},
		{name: "that of a container that had the address from us", content: "c2\r\neth0", boot: "boot-1",
			owners: []lease.Attachment{{ContainerID: "c0", IfName: "eth0"}, {ContainerID: "c2", IfName: "eth0"}}},
		{name: "that of a container that had the address from us, newer", content: "c2\r\neth0", age: -time.Hour,
			boot: "boot-1", owners: []lease.Attachment{{ContainerID: "c2", IfName: "eth0"}}, want: true},
		{name: "another than those that had the address from us", content: "c2\r\neth0", boot: "boot-1",
			owners: []lease.Attachment{{ContainerID: "c0", IfName: "eth0"},
				{ContainerID: "c2", IfName: "net1"}}, want: true},
	}
	for _, tt := range tests {
		f := File{Content: tt.content, Modified: now.Wall.Add(-tt.age)}
		history := func() History { return History{Owners: tt.owners, Last: later} }
		if got := f.IsForeign(bound, tt.boot, history, func() bool { return tt.live }); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

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
	other.Remove(testAddress)
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	want("after another's change", "c1\r\neth0", true)
	d.Remove(testAddress)
	want("after a removal", "", false)
}

// TestRemoveWaitsForFlush verifies that a call sees its removals, and that the files stay until it
// is certain that it commits.
func TestRemoveWaitsForFlush(t *testing.T) {
	d, l := openWithLease(t)
	want := func(when string, seen, exists bool) {
		t.Helper()
		addrs, err := d.Addresses()
		if err != nil {
			t.Fatal(err)
		}
		_, found, _ := d.Read(testAddress)
		if found != seen || d.Has(testAddress) != seen || len(addrs) == 1 != seen {
			t.Errorf("%s: Read %t, Has %t, Addresses %v, want all %t", when, found, d.Has(testAddress), addrs, seen)
		}
		if _, err := os.Lstat(d.FilePath(testAddress)); err == nil != exists {
			t.Errorf("%s: the file is there: %t, want %t", when, err == nil, exists)
		}
	}
	steps := []struct {
		when         string
		do           func() error
		seen, exists bool
	}{
		{"after a write", func() error { return d.Write(l, now) }, true, true},
		{"after a removal", func() error { d.Remove(testAddress); return nil }, false, true},
		{"after a reset", func() error { d.Reset(); return d.Flush() }, true, true},
		{"written after a removal", func() error {
			d.Remove(testAddress)
			return errors.Join(d.Write(l, now), d.Flush())
		}, true, true},
		{"after a flush", func() error { d.Remove(testAddress); return d.Flush() }, false, false},
		{"removed twice", func() error { d.Remove(testAddress); return d.Flush() }, false, false},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.when, err)
		}
		want(s.when, s.seen, s.exists)
	}
	unlocked, err := OpenUnlocked(l.Pool)
	if err != nil {
		t.Fatal(err)
	}
	unlocked.Remove(testAddress)
	if err := unlocked.Flush(); err == nil {
		t.Error("a file was removed without host-local's lock")
	}
}
