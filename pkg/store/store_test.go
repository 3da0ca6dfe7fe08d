package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/descriptors"
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
		if err != nil && !IsEmpty(err) && !t.Failed() && !errors.Is(err, ErrLost) && !errors.Is(err, ErrNewer) {
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
	if err := s.Update(context.Background(), Options{}, nothing); !errors.Is(err, ErrIO) {
		t.Errorf("Update: %v, want ErrIO", err)
	}
	if err := s.View(context.Background(), nothing); !errors.Is(err, ErrIO) {
		t.Errorf("View: %v, want ErrIO", err)
	}
	if _, err := os.Lstat(s.path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store was made: %v", err)
	}
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
}

func update(t *testing.T, s *Store, fn func(*Tx) error) {
	t.Helper()
	if err := s.Update(context.Background(), Options{}, fn); err != nil {
		t.Fatal(err)
	}
}

func view(t *testing.T, s *Store, fn func(*Tx)) {
	t.Helper()
	if err := s.View(context.Background(), func(tx *Tx) error { fn(tx); return nil }); err != nil {
		t.Fatal(err)
	}
}

func fresh(addr, pod, container string) lease.Lease {
	l, err := lease.Apply(lease.Lease{}, lease.Bind{
		ID: "00112233445566aa", Pool: testPool, Address: netip.MustParseAddr(addr), Set: "set1",
		Namespace: "db", Name: pod, UID: "u-" + pod,
		Holder: lease.Holder{ContainerID: container, IfName: "eth0",
			BootID: "b1"}, Window: lease.Window(time.Hour), Soft: time.Minute,
	}, t0)
	if err != nil {
		panic(err)
	}
	return l
}

func put(tx *Tx, l lease.Lease) error { return tx.Put(l.Pool, l.Address, l) }

func TestErrorRollsBack(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return tx.SetAdopted(testPool) })
	boom := errors.New("boom")
	err := s.Update(context.Background(), Options{}, func(tx *Tx) error {
		return errors.Join(put(tx, fresh("10.0.0.5", "db-0", "c1")), boom)
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	view(t, s, func(tx *Tx) {
		if tx.Len() != 0 {
			t.Error("the lease was committed")
		}
	})
}

func TestUpdateWithoutChangeWritesNothing(t *testing.T) {
	s := open(t)
	l := fresh("10.0.0.5", "db-0", "c1")
	update(t, s, func(tx *Tx) error { return put(tx, l) })
	before, err := os.ReadFile(s.path())
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, func(tx *Tx) error { return put(tx, l) })
	after, _ := os.ReadFile(s.path())
	if string(before) != string(after) {
		t.Error("the file has changed")
	}
}

// TestFreeAgainstAModel compares the bitmap with checking each address.
func TestFreeAgainstAModel(t *testing.T) {
	s := open(t)
	undo := errors.New("undo")
	rapid.Check(t, func(r *rapid.T) {
		base := netip.MustParseAddr(rapid.SampledFrom([]string{"10.0.0.0", "10.0.255.0", "fd00::ff00"}).Draw(r, "base"))
		at := func(n int) netip.Addr {
			a := base
			for range n {
				a = a.Next()
			}
			return a
		}
		taken := map[netip.Addr]bool{}
		for range rapid.IntRange(0, 5).Draw(r, "runs") {
			from := rapid.IntRange(0, 600).Draw(r, "from")
			for i := range rapid.IntRange(1, 300).Draw(r, "length") {
				taken[at(from+i)] = true
			}
		}
		lo, hi := rapid.IntRange(0, 700).Draw(r, "lo"), rapid.IntRange(0, 900).Draw(r, "hi")
		err := s.Update(context.Background(), Options{}, func(tx *Tx) error {
			for a := range taken {
				l := fresh(a.String(), "", "c")
				l.Namespace, l.Window = "", 0
				if err := put(tx, l); err != nil {
					return err
				}
			}
			var want netip.Addr
			for i := lo; i <= hi; i++ {
				if !taken[at(i)] {
					want = at(i)
					break
				}
			}
			if got, ok := tx.Free(testPool, at(lo), at(hi)); ok != want.IsValid() || ok && got != want {
				r.Fatalf("free in %s-%s: %s %v, want %s", at(lo), at(hi), got, ok, want)
			}
			return undo
		})
		if !errors.Is(err, undo) {
			r.Fatal(err)
		}
	})
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
		if err := s.Update(context.Background(), Options{}, put); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A hold that maxHeldShare made a short one promises nothing: its pod may have another address.
func TestCheckAllowsAShortHoldBesideANewLease(t *testing.T) {
	s := open(t)
	bound, other := fresh("10.0.0.6", "db-0", "c2"), fresh("10.0.0.5", "db-0", "c1")
	held, err := lease.Apply(other, lease.Release{Holder: other.Holder, Limited: true}, t0)
	if err != nil || held.Firm || held.Window == 0 {
		t.Fatalf("%+v, %v", held, err)
	}
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, held), put(tx, bound)) })
	view(t, s, func(tx *Tx) {
		if found := tx.Check(); len(found) > 0 {
			t.Errorf("%q", found)
		}
	})
	update(t, s, func(tx *Tx) error { return tx.Put(other.Pool, other.Address, other) })
	view(t, s, func(tx *Tx) {
		if len(tx.Check()) == 0 {
			t.Error("one key has two addresses, and that is sound")
		}
	})
	update(t, s, func(tx *Tx) error { return tx.Put(other.Pool, other.Address, held) })
}

func TestJournalEntryRoundTrip(t *testing.T) {
	l := fresh("10.0.0.5", "db-0", "c1")
	n := About(l, EventKept, t0, "why")
	n.UID, n.Reservation = "u1", "registry"
	if v := reflect.ValueOf(n); n.Time != t0.Wall || n.Window != lease.Window(time.Hour) {
		t.Errorf("about %+v: %+v", l, n)
	} else {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%s is zero: the test would not detect its loss", v.Type().Field(i).Name)
			}
		}
	}
	if got, _, err := decode(entryFields, encode(entryFields, &n, nil)); err != nil || got != n {
		t.Errorf("got %+v, %v; want %+v", got, err, n)
	}
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
		return tx.Log(Entry{Event: EventBound, Reason: fmt.Sprint(total-1, strings.Repeat("x", 1<<20))})
	})
	view(t, s, func(tx *Tx) {
		var all []Entry
		for _, n := range tx.Entries(0) {
			all = append(all, n)
		}
		if long := all[len(all)-1].Reason; len(long) != maxReason || !strings.HasPrefix(long, fmt.Sprint(total-1)) {
			t.Errorf("a long reason has %d bytes", len(long))
		}
		all = all[:len(all)-1]
		if want := JournalSize + total%journalSlack; len(all) != want {
			t.Errorf("%d entries, want %d", len(all), want)
		}
		if last := all[len(all)-1].Reason; last != fmt.Sprint(total-1) {
			t.Errorf("the last entry is %s", last)
		}
	})
}

// countOnce counts n once. It repeats an Update that has waited for MaxWait: the disk may be slow.
func countOnce(t *testing.T, s *Store) {
	for {
		err := s.Update(t.Context(), Options{}, func(tx *Tx) error { return tx.Count("n", 1) })
		if err == nil {
			return
		}
		if !errors.Is(err, ErrBusy) {
			t.Error(err)
			return
		}
	}
}

func TestParallelUpdates(t *testing.T) {
	s := open(t)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() { countOnce(t, s) })
	}
	wg.Wait()
	view(t, s, func(tx *Tx) {
		if n := tx.Counter("n"); n != 32 {
			t.Errorf("counted %d of 32", n)
		}
	})
}

func TestBusy(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return tx.Count("n", 1) })
	f, err := os.OpenFile(s.lock(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := s.Update(ctx, Options{}, func(*Tx) error { return nil }); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	f.Close()
	update(t, s, func(tx *Tx) error { return tx.Count("n", 1) })
}

// awaitWaiter waits until a flock(2) waits for a lock on the file.
func awaitWaiter(t *testing.T, f *os.File) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	waiter := regexp.MustCompile(fmt.Sprintf(`-> FLOCK .*:%d 0 EOF`, st.Ino)) // proc_locks(5)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		if waiter.Match(locks) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nothing waits for the lock of file %d:\n%s", st.Ino, locks)
		}
	}
}

// The lock on a file that was removed while its lock was awaited is released.
func TestRemovedLockFileIsReleased(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := LockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	removed, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer removed.Close()
	second := make(chan *os.File)
	go func() {
		f, err := LockFile(t.Context(), path)
		if err != nil {
			t.Error(err)
		}
		second <- f
	}()
	awaitWaiter(t, removed)
	if err := errors.Join(os.Remove(path), first.Close()); err != nil {
		t.Fatal(err)
	}
	f := <-second
	defer f.Close()
	if !isAt(f, path) {
		t.Error("the lock is on the removed file")
	}
	if err := flockEINTR(removed, lockExclusive|syscall.LOCK_NB); err != nil {
		t.Errorf("the removed file is still locked: %v", err)
	}
}

func TestLockFileThatCannotBeOpened(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var failed *fs.PathError
	for _, path := range []string{filepath.Join(file, "lock"), filepath.Join(file, "dir", "lock"), t.TempDir()} {
		if f, err := LockFile(t.Context(), path); !errors.Is(err, ErrIO) || !errors.As(err, &failed) || f != nil {
			t.Errorf("%s: %v, %v", path, f, err)
		}
	}
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
			if err := c.harm(filepath.Join(dir, of)); err != nil {
				t.Fatal(err)
			}
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
		if !strings.Contains(tx.Lost(), why) || tx.Len() != 0 || tx.Adopted(testPool) {
			t.Errorf("Lost() is %q, with %d leases", tx.Lost(), tx.Len())
		}
	})
}

func TestDamagedRecordDoesNotAffectOthers(t *testing.T) {
	s := open(t)
	good, bad := fresh("10.0.0.5", "db-0", "c1"), fresh("10.0.0.6", "db-1", "c2")
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, good), put(tx, bad)) })
	update(t, s, func(tx *Tx) error {
		return tx.put(bucketLeases, leaseKey(tx.pools[testPool], bad.Address), []byte("garbage"))
	})
	view(t, s, func(tx *Tx) {
		if _, err := tx.Get(testPool, bad.Address); !errors.Is(err, ErrDamaged) {
			t.Errorf("got %v", err)
		}
		if l, err := tx.ByKey(good.Key()); err != nil || len(l) != 1 {
			t.Errorf("the other record: %+v %v", l, err)
		}
		if _, free := tx.Free(testPool, bad.Address, bad.Address); free {
			t.Error("the address of a damaged record is free")
		}
		if found := tx.Check(); len(found) == 0 || !strings.Contains(strings.Join(found, "\n"), "10.0.0.6") {
			t.Errorf("Check returned %q", found)
		}
	})
	// Writing it again repairs it, as the check at the end of the test verifies.
	update(t, s, func(tx *Tx) error { return put(tx, bad) })
}

// A pool with another number or name would seem to have no leases, and its addresses would be free.
func TestDamagedPoolIsLost(t *testing.T) {
	s := open(t)
	l := fresh("10.0.0.5", "a", "c1")
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, l), tx.SetAdopted(l.Pool)) })
	var key, value []byte
	view(t, s, func(tx *Tx) { key, value = poolKey(l.Pool), bytes.Clone(tx.bucket(bucketPools).Get(poolKey(l.Pool))) })
	whole, undo := len(key)+len(value), errors.New("undo")
	for bit := range 8 * whole {
		damaged := slices.Concat(key, value)
		damaged[bit/8] ^= 1 << (bit % 8)
		err := s.Update(t.Context(), Options{}, func(tx *Tx) error {
			if err := tx.delete(bucketPools, key); err != nil {
				return err
			}
			if err := tx.put(bucketPools, damaged[:len(key)], damaged[len(key):]); err != nil {
				return err
			}
			tx, err := newTx(tx.b)
			if !errors.Is(err, ErrLost) {
				t.Errorf("bit %d of %d: %v, pools %v; want %v", bit, 8*whole, err, tx.pools, ErrLost)
			}
			return undo
		})
		if !errors.Is(err, undo) {
			t.Fatal(err)
		}
	}
}

func TestSpool(t *testing.T) {
	s := open(t)
	later := lease.Instant{Wall: t0.Wall.Add(time.Second), Boot: t0.Boot + time.Second}
	for container, at := range map[string]lease.Instant{"a.b-1": t0, "c2": later} {
		if err := s.Spool(container, "eth@0.7", at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.SpoolDir(), "not-a-record"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.Spooled("b1")
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	if got[0].ContainerID != "a.b-1" || got[0].IfName != "eth@0.7" || got[0].At != t0 || got[1].ContainerID != "c2" {
		t.Errorf("%+v", got)
	}
	if err := errors.Join(s.Unspool(got), s.Unspool(got)); err != nil { // another call may have replayed them as well
		t.Fatal(err)
	}
	if left, _ := s.Spooled("b1"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	if err := errors.Join(os.Remove(filepath.Join(s.SpoolDir(), "not-a-record")), os.Remove(s.SpoolDir()),
		os.WriteFile(s.SpoolDir(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var failed *fs.PathError
	if err := s.Spool("c1", "eth0", t0); !errors.Is(err, ErrIO) || !errors.As(err, &failed) || failed.Op != "mkdir" {
		t.Errorf("a file is where the directory should be: %v", err)
	}
}

// Opening a damaged file returns an error. It never panics, and never yields an empty store.
func TestDamagedFileIsLost(t *testing.T) {
	whole := open(t)
	update(t, whole, func(tx *Tx) error {
		for i := range 200 {
			if err := put(tx, fresh(fmt.Sprintf("10.0.1.%d", i+1), fmt.Sprint("db-", i),
				fmt.Sprint("c", i))); err != nil {
				return err
			}
		}
		return nil
	})
	image, err := os.ReadFile(whole.path())
	if err != nil {
		t.Fatal(err)
	}
	used := int(binary.LittleEndian.Uint64(image[16+40:])) * pageSize
	used = max(used, int(binary.LittleEndian.Uint64(image[pageSize+16+40:]))*pageSize)
	damage := map[string]func() []byte{
		"empty":               func() []byte { return nil },
		"one byte":            func() []byte { return image[:1] },
		"both heads zero":     func() []byte { return append(make([]byte, 2*pageSize), image[2*pageSize:]...) },
		"cut inside":          func() []byte { return image[:used-1] },
		"cut after the heads": func() []byte { return image[:2*pageSize] },
		"all but heads zero": func() []byte {
			return append(append([]byte(nil), image[:2*pageSize]...), make([]byte, len(image))...)
		},
		"garbage after heads": func() []byte {
			return append(append([]byte(nil), image[:2*pageSize]...), garbage(len(image))...)
		},
		"garbage from the top": func() []byte { return garbage(len(image)) },
	}
	for name, b := range damage {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			update(t, s, func(tx *Tx) error { return tx.SetAdopted(testPool) })
			if err := os.WriteFile(s.path(), b(), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := s.View(context.Background(), func(*Tx) error { return nil }); !errors.Is(err, ErrLost) {
				t.Errorf("View returned %v", err)
			}
			damaged, _ := os.ReadFile(s.path())
			update(t, s, func(*Tx) error { return nil })
			isLost(t, s, ErrLost.Error())
			aside, err := filepath.Glob(filepath.Join(s.lostDir(), "leases.db.*"))
			if err != nil || len(aside) != 1 {
				t.Fatalf("moved files: %q %v", aside, err)
			}
			if kept, _ := os.ReadFile(aside[0]); !bytes.Equal(kept, damaged) {
				t.Error("the moved file differs")
			}
		})
	}
	t.Run("removed", func(t *testing.T) {
		s := open(t)
		update(t, s, func(tx *Tx) error { return tx.SetAdopted(testPool) })
		os.Remove(s.path())
		update(t, s, func(*Tx) error { return nil })
		isLost(t, s, "missing")
	})
}

// A long-running process reads a damaged file repeatedly, until a plugin replaces it. The file must
// not stay mapped when bbolt has panicked.
func TestDamagedFileIsNotKept(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	b, err := os.ReadFile(s.path())
	if err != nil {
		t.Fatal(err)
	}
	clear(b[2*pageSize:])
	if err := os.WriteFile(s.path(), b, 0o600); err != nil {
		t.Fatal(err)
	}
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
	err := s.Update(context.Background(), Options{}, func(*Tx) error { panic("boom") })
	if !errors.Is(err, ErrIO) || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v", err)
	}
	view(t, s, func(tx *Tx) {
		if tx.Len() != 1 {
			t.Error("the lease was lost")
		}
	})
}

func garbage(n int) []byte {
	b := make([]byte, n)
	x := uint32(2463534242)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

// TestProvePages compares provePages with bbolt's check: both accept a file that has grown and
// shrunk, and provePages panics on no flipped bit.
func TestProvePages(t *testing.T) {
	s := open(t)
	for round := range 4 {
		update(t, s, func(tx *Tx) error {
			for i := range 400 {
				l := fresh(fmt.Sprintf("10.%d.%d.%d", round, i/200, i%200+1), fmt.Sprint("db-", i), fmt.Sprint("c", i))
				if err := put(tx, l); err != nil {
					return err
				}
				if round > 0 {
					last := netip.MustParseAddr(fmt.Sprintf("10.%d.%d.%d", round-1, i/200, i%200+1))
					if err := tx.Put(testPool, last, lease.Lease{}); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	view(t, s, func(tx *Tx) {
		for err := range tx.b.Check() {
			t.Error("bbolt: ", err)
		}
	})
	image, err := os.ReadFile(s.path())
	if err != nil {
		t.Fatal(err)
	}
	if err := provePages(image); err != nil {
		t.Error(err)
	}
	a, _ := parseMeta(image[:pageSize])
	b, _ := parseMeta(image[pageSize:])
	newest := a
	if b.tx > a.tx {
		newest = b
	}
	free := image[newest.freelist*pageSize+pageHeader:]
	for _, id := range []uint64{0, 1, newest.freelist, newest.pages} {
		was := binary.LittleEndian.Uint64(free)
		binary.LittleEndian.PutUint64(free, id)
		if err := provePages(image); err == nil {
			t.Errorf("page %d of %d is listed as free", id, newest.pages)
		}
		binary.LittleEndian.PutUint64(free, was)
	}
	root := image[newest.root*pageSize+pageHeader:]
	element := bytes.Clone(root[:elementSize])
	pos, keySize := binary.LittleEndian.Uint32(root[4:]), binary.LittleEndian.Uint32(root[8:])
	for story, to := range map[string][2]uint32{ // the value stays the same
		"an empty key":                  {pos + keySize, 0},
		"a key that begins too early":   {0, pos + keySize},
		"a key in the element's header": {elementSize - 1, pos + keySize - elementSize + 1},
	} {
		binary.LittleEndian.PutUint32(root[4:], to[0])
		binary.LittleEndian.PutUint32(root[8:], to[1])
		if err := provePages(image); err == nil {
			t.Errorf("%s is accepted", story)
		}
		copy(root, element)
	}
	noticed := 0
	for at := 2 * pageSize; at < int(max(a.pages, b.pages))*pageSize; at += 97 {
		image[at] ^= 0x80
		if provePages(image) != nil {
			noticed++
		}
		image[at] ^= 0x80
	}
	if noticed == 0 {
		t.Error("no flipped bit was detected")
	}
}

func FuzzProvePages(f *testing.F) {
	dir := f.TempDir()
	s := New(Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")})
	if err := s.Update(context.Background(), Options{},
		func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) }); err != nil {
		f.Fatal(err)
	}
	image, err := os.ReadFile(s.path())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(2*pageSize+8), []byte{1})
	f.Fuzz(func(t *testing.T, at uint32, b []byte) {
		damaged := bytes.Clone(image[:16*pageSize])
		copy(damaged[int(at)%len(damaged):], b)
		_ = provePages(damaged) // must not panic
	})
}

// A wait that the kernel does not end keeps a thread, and a process may have 10,000: an agent that
// waits for a lock that is never released must not accumulate them.
func TestShortWaitsForALockLeaveNothingBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := LockFile(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		if _, err := LockFile(ctx, path); !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
		cancel()
	}
	if left := runtime.NumGoroutine() - before; left > 2 { // the runtime's own
		t.Errorf("%d goroutines are left", left)
	}
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(pollLimit/2, func() { lock.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), pollLimit)
		defer cancel()
		again, err := LockFile(ctx, path)
		if err != nil {
			t.Fatalf("it was released in time: %v", err)
		}
		again.Close()
	})
}

func TestTheRunDirectoryCannotBeCreated(t *testing.T) {
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	if err := os.Symlink("nowhere", run); err != nil {
		t.Fatal(err)
	}
	var failed *fs.PathError
	s := New(Dirs{State: filepath.Join(dir, "state"), Run: run})
	err := s.Update(t.Context(), Options{}, func(*Tx) error { return nil })
	if !errors.Is(err, ErrIO) || !errors.As(err, &failed) || failed.Op != "mkdir" {
		t.Errorf("error %v; want that of mkdir", err)
	}
}

// A View in which a write failed must not leave its transaction open: closing the file would wait
// for it.
func TestViewThatIgnoresAFailedWrite(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return tx.BeginBoot("boot-1") })
	done := make(chan error, 1)
	go func() {
		done <- s.View(context.Background(), func(tx *Tx) error {
			_ = tx.BeginBoot("boot-2")
			return nil
		})
	}()
	select {
	case err := <-done:
		if !errors.Is(err, ErrIO) {
			t.Errorf("%v, want %v", err, ErrIO)
		}
	case <-time.After(time.Minute):
		t.Fatal("the View hangs")
	}
}

// TestPoolBehindALink stores a pool whose path becomes a link: it is the pool of the link's target.
func TestPoolBehindALink(t *testing.T) {
	s, dir := open(t), t.TempDir()
	old, now := filepath.Join(dir, "old"), filepath.Join(dir, "now")
	l := fresh("10.0.0.5", "db-0", "c1")
	l.Pool.DataDir = old
	update(t, s, func(tx *Tx) error { return put(tx, l) })
	if err := errors.Join(os.Mkdir(now, 0o700), os.Symlink(now, old)); err != nil {
		t.Fatal(err)
	}
	moved := lease.Pool{DataDir: now, Network: l.Pool.Network}
	found := func(tx *Tx) {
		got, err := tx.Get(moved, l.Address)
		if err != nil || got.Pool != moved || got.ID != l.ID || !slices.Equal(tx.Pools(), []lease.Pool{moved}) {
			t.Errorf("%+v, %v; pools %v", got, err, tx.Pools())
		}
		if wrong := tx.Check(); len(wrong) > 0 {
			t.Errorf("%q", wrong)
		}
	}
	view(t, s, found)
	update(t, s, func(tx *Tx) error { return tx.SetAdopted(moved) })
	if err := os.Remove(old); err != nil {
		t.Fatal(err)
	}
	view(t, s, found)
}
