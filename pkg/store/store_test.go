package store

import (
	"bytes"
	"context"

	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"slices"
	"strings"

	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/boltfile"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/descriptors"
	"github.com/leasehold-cni/leasehold/test/must"
)

var t0 = lease.Instant{Wall: time.Unix(1_700_000_000, 0).UTC(), Boot: time.Hour, BootID: "b1"}

// open returns a store that is checked when the test ends.
func open(t *testing.T) *Store {
	dir := t.TempDir()
	s := New(Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")})
	t.Cleanup(func() {
		err := s.View(context.Background(), func(tx *Tx) error {
			for _, f := range tx.Check() {
				t.Error("check: " + f)
			}
			return nil
		})
		if err != nil && !t.Failed() && !errors.Is(err, ErrLost) && !errors.Is(err, ErrNewer) {
			t.Error(err)
		}
	})
	return s
}

// If it is unknown whether a missing store was there before, it is neither created nor taken
// for lost.
func TestAMissingStoreWithAnUnreadableMark(t *testing.T) {
	s := open(t)
	mark := filepath.Join(s.dirs.Run, "used")
	if err := errors.Join(os.MkdirAll(s.dirs.Run, 0o700), os.Symlink("used", mark)); err != nil { // to itself
		t.Fatal(err)
	}
	nothing := func(*Tx) error { return nil }
	check.Is(t, s.Update(context.Background(), nothing), ErrIO, "Update")
	check.Is(t, s.View(context.Background(), nothing), ErrIO, "View")
	_, err := os.Lstat(s.path())
	check.Is(t, err, fs.ErrNotExist, "a store was made")
	must.Succeed(t, os.Remove(mark))
}

func update(t *testing.T, s *Store, fn func(*Tx) error) {
	t.Helper()
	must.Succeed(t, s.Update(context.Background(), fn))
}

func view(t *testing.T, s *Store, fn func(*Tx)) {
	t.Helper()
	must.Succeed(t, s.View(context.Background(), func(tx *Tx) error { fn(tx); return nil }))
}

func fresh(addr, pod, container string) lease.Lease {
	l, err := lease.Apply(lease.Lease{}, lease.Bind{Lease: lease.Lease{
		ID: "00112233445566aa", Pool: testPool, Address: netip.MustParseAddr(addr), Set: "set1",
		Namespace: "db", Name: pod, UID: "u-" + pod,
		Holder: lease.Holder{ContainerID: container, IfName: "eth0",
			BootID: "b1"}, Window: lease.Window(time.Hour), CoolDown: time.Minute,
	}}, t0)
	if err != nil {
		panic(err)
	}
	return l
}

func put(tx *Tx, l lease.Lease) error { return tx.Put(l.Pool, l.Address, l) }

func TestUpdateWithoutChangeWritesNothing(t *testing.T) {
	s := open(t)
	l := fresh("10.0.0.5", "db-0", "c1")
	update(t, s, func(tx *Tx) error { return put(tx, l) })
	before := must.Read(t, s.path())
	update(t, s, func(tx *Tx) error { return put(tx, l) })
	after, _ := os.ReadFile(s.path())
	if string(before) != string(after) {
		t.Error("the file has changed")
	}
}

func TestPutRejectsOtherAddresses(t *testing.T) {
	s := open(t)
	l := fresh("10.0.0.5", "db-0", "c1")
	elsewhere := lease.Pool{DataDir: testPool.DataDir, Network: "elsewhere"}
	for name, put := range map[string]func(*Tx) error{
		"another address": func(tx *Tx) error { return tx.Put(l.Pool, netip.MustParseAddr("10.0.0.6"), l) },
		"another pool":    func(tx *Tx) error { return tx.Put(elsewhere, l.Address, l) },
		"no lease at all": func(tx *Tx) error { l := l; l.ID = ""; return tx.Put(l.Pool, l.Address, l) },
	} {
		if err := s.Update(context.Background(), put); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A hold that maxHeldShare made a short one promises nothing: its pod may have another address.
func TestCheckAllowsAShortHoldBesideANewLease(t *testing.T) {
	s := open(t)
	bound, other := fresh("10.0.0.6", "db-0", "c2"), fresh("10.0.0.5", "db-0", "c1")
	held, err := lease.Apply(other, lease.Release{Holder: other.Holder, Limited: true}, t0)
	if err != nil || held.IsHold || held.Window == 0 {
		t.Fatalf("%+v, %v", held, err)
	}
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, held), put(tx, bound)) })
	view(t, s, func(tx *Tx) {
		check.Empty(t, tx.Check())
	})
	update(t, s, func(tx *Tx) error { return tx.Put(other.Pool, other.Address, other) })
	view(t, s, func(tx *Tx) {
		if len(tx.Check()) == 0 {
			t.Error("one key has two addresses, and that is sound")
		}
	})
	update(t, s, func(tx *Tx) error { return tx.Put(other.Pool, other.Address, held) })
}

// The holds of a namespace are counted without those of others.
func TestHoldsOfOneNamespace(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) (err error) {
		for i := range 512 {
			l := fresh(fmt.Sprintf("10.0.%d.%d", i/256, i%256), fmt.Sprint("db-", i), fmt.Sprint("c", i))
			if i > 2 {
				l.Namespace = "others"
			}
			held, applyErr := lease.Apply(l, lease.Release{Holder: l.Holder}, t0)
			err = errors.Join(err, applyErr, put(tx, held))
		}
		return err
	})
	view(t, s, func(tx *Tx) {
		l := fresh("10.0.0.99", "db-1", "c1")
		others := l
		others.Namespace = "others"
		var all int
		few := testing.AllocsPerRun(3, func() { all, _ = tx.HoldsOf(l) })
		many := testing.AllocsPerRun(3, func() { tx.HoldsOf(others) })
		if all != 3 || few > many/50 {
			t.Errorf("%d holds, with %v allocations; those of 509 holds: %v", all, few, many)
		}
	})
}

func TestJournalIsLimited(t *testing.T) {
	s := open(t)
	total := JournalSize + 3*journalSlack + 5
	update(t, s, func(tx *Tx) error {
		for i := range total {
			if err := tx.Log(Entry{Time: t0.Wall, Event: EventBound, Reason: fmt.Sprint(i)}); err != nil {
				return err
			}
		}
		return nil
	})
	update(t, s, func(tx *Tx) error {
		return tx.Log(Entry{Event: EventBound, Reason: fmt.Sprint(total-1, " ", strings.Repeat("é", 1<<19))})
	})
	view(t, s, func(tx *Tx) {
		var all []Entry
		for _, n := range tx.Entries(0) {
			all = append(all, n)
		}
		if long := all[len(all)-1].Reason; len(long) != maxReason-1 || !utf8.ValidString(long) ||
			!strings.HasPrefix(long, fmt.Sprint(total-1)) {
			t.Errorf("a long reason has %d bytes: %q", len(long), long)
		}
		all = all[:len(all)-1]
		check.Equal(t, len(all), JournalSize+total%journalSlack, "entries")
		check.Equal(t, all[len(all)-1].Reason, fmt.Sprint(total-1), "the last entry")
	})
}

func TestBusy(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return tx.Count("n", 1) })
	f, err := os.OpenFile(s.lock(), os.O_RDWR, 0)
	must.Succeed(t, err)
	must.Succeed(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	check.Is(t, s.Update(ctx, func(*Tx) error { return nil }), ErrBusy)
	f.Close()
	update(t, s, func(tx *Tx) error { return tx.Count("n", 1) })
}

// Probe fails if one of the directories cannot be created or written.
func TestProbe(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(dir string) error
		ok   bool
	}{
		"there are none":    {func(string) error { return nil }, true},
		"a link to nowhere": {func(dir string) error { return os.Symlink("nowhere", dir) }, false},
		"a file":            {func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, false},
		"a read-only file system": {func(dir string) error {
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			return errors.Join(os.Mkdir(dir, 0o700), unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""))
		}, false},
	} {
		for _, of := range []string{"state", "run"} {
			dir := t.TempDir()
			must.Succeed(t, c.harm(filepath.Join(dir, of)))
			err := New(Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}).Probe()
			if (err == nil) != c.ok || !c.ok && !errors.Is(err, ErrIO) {
				t.Errorf("%s, %s: %v", of, name, err)
			}
		}
	}
}

// isLost checks that the store has replaced a lost one, and the reason.
func isLost(t *testing.T, s *Store, why string) {
	t.Helper()
	view(t, s, func(tx *Tx) {
		if !strings.Contains(tx.Lost(), why) || tx.Len() != 0 || tx.Imported(testPool) {
			t.Errorf("Lost() is %q, with %d leases", tx.Lost(), tx.Len())
		}
	})
}

// A pool with another number or name would seem to have no leases, and its addresses would be free.
func TestDamagedPoolIsLost(t *testing.T) {
	s := open(t)
	l := fresh("10.0.0.5", "a", "c1")
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, l), tx.SetImported(l.Pool)) })
	var key, value []byte
	view(t, s, func(tx *Tx) { key, value = poolKey(l.Pool), bytes.Clone(tx.bucket(bucketPools).Get(poolKey(l.Pool))) })
	undo := errors.New("undo")
	lost := func(what string, key2, value2 []byte) {
		t.Helper()
		err := s.Update(t.Context(), func(tx *Tx) error {
			if err := errors.Join(tx.delete(bucketPools, key), tx.put(bucketPools, key2, value2)); err != nil {
				return err
			}
			tx, err := newTx(tx.b)
			check.Is(t, err, ErrLost, what, "pools", tx.pools)
			return undo
		})
		check.Is(t, err, undo)
	}
	for bit := range 8 * (len(key) + len(value)) {
		damaged := slices.Concat(key, value)
		damaged[bit/8] ^= 1 << (bit % 8)
		lost(fmt.Sprint("bit ", bit), damaged[:len(key)], damaged[len(key):])
	}
	for n := range len(value) {
		lost(fmt.Sprint(n, " bytes"), key, value[:n])
	}
}

// A long-running process reads a damaged file repeatedly, until a plugin replaces it. The file must
// not stay mapped when bbolt has panicked.
func TestDamagedFileIsNotKept(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	b := must.Read(t, s.path())
	clear(b[2*boltfile.PageSize:])
	must.Succeed(t, os.WriteFile(s.path(), b, 0o600))
	read := func(tx *Tx) error {
		tx.All(func(lease.Lease, error) bool { return true })
		return nil
	}
	descriptors.AssertClosed(t, func() {
		err := s.View(context.Background(), read)
		if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "reading it failed") {
			t.Fatalf("got %v; if bbolt does not panic on this damage any more, the test needs another", err)
		}
	})
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil || bytes.Contains(maps, []byte(s.path())) {
		t.Errorf("%v; mapped:\n%s", err, maps)
	}
	update(t, s, read)
	isLost(t, s, "reading it failed")
}

// A panic of our own must not lose an intact store.
func TestPanicWithAnIntactFile(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	err := s.Update(context.Background(), func(*Tx) error { panic("boom") })
	check.Is(t, err, ErrIO)
	check.Error(t, err, "boom")
	view(t, s, func(tx *Tx) {
		check.Equal(t, tx.Len(), 1, "leases")
	})
}

// TestLossEndsWithItsBoot verifies that Lost is "" in another boot, and only if both boots are
// known.
func TestLossEndsWithItsBoot(t *testing.T) {
	s, boot := open(t), "b1"
	s.BootID = func() string { return boot }
	update := func() (lost string) {
		t.Helper()
		must.Succeed(t, s.Update(t.Context(), func(tx *Tx) error { lost = tx.Lost(); return nil }))
		return lost
	}
	check.Equal(t, update(), "", "at first")
	must.Succeed(t, os.Remove(s.path()))
	for call := range 2 {
		if update() == "" {
			t.Errorf("call %d: it is not lost", call)
		}
	}
	for _, c := range []struct {
		boot string
		lost bool
	}{{"", true}, {"b2", false}, {"b1", true}} {
		boot = c.boot
		check.Equal(t, update() != "", c.lost, "lost in boot", boot)
	}
	must.Succeed(t, os.Remove(s.path()))
	boot = "b3"
	check.Equal(t, update(), "", "removed, in a run directory of another boot")
}
