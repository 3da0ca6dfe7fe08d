package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/descriptors"
)

func TestSnapshotOutlivesTheStore(t *testing.T) {
	s := open(t)
	if got, _, err := s.ReadSnapshot(); err != nil || got != nil {
		t.Errorf("no snapshot yet: %v %v", got, err)
	}
	a, b := fresh("10.0.0.5", "db-0", "c1"), fresh("10.0.0.6", "db-1", "c2")
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, a), put(tx, b)) })
	if err := s.WriteSnapshot(context.Background(), t0); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(s.snapshotPath()); err != nil || !strings.Contains(string(b), `"format":1,`) {
		t.Errorf("a newer version could not know its format: %v in %.40s", err, b)
	}
	os.Remove(s.path())
	got, at, err := s.ReadSnapshot()
	if err != nil || len(got) != 2 || !reflect.DeepEqual(got[0], a) || !at.Equal(t0.Wall) {
		t.Errorf("%+v at %s, %v", got, at, err)
	}
}

func TestANewStoreClosesWhatItOpens(t *testing.T) {
	descriptors.AssertClosed(t, func() {
		update(t, open(t), func(tx *Tx) error { return tx.SetBoot("b") })
	})
}

// A lost store that cannot be kept is not replaced.
func TestLostStoreThatCannotBeMoved(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	err := errors.Join(os.Truncate(s.path(), 5000), os.WriteFile(s.lostDir(), nil, 0o600))
	before, errRead := os.ReadFile(s.path())
	if err := errors.Join(err, errRead); err != nil {
		t.Fatal(err)
	}
	err = s.Update(t.Context(), func(*Tx) error { t.Error("it was replaced"); return nil })
	if !errors.Is(err, ErrIO) || !strings.Contains(err.Error(), "moving the lost store") {
		t.Errorf("%v", err)
	}
	if after, err := os.ReadFile(s.path()); err != nil || !bytes.Equal(after, before) {
		t.Errorf("it has changed: %d bytes of %d, %v", len(after), len(before), err)
	}
}

func TestInvalidSnapshot(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	for content, want := range map[string]error{"{": ErrDamaged, "": ErrDamaged, `{"format":9}`: ErrNewer} {
		if err := os.WriteFile(s.snapshotPath(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.ReadSnapshot(); !errors.Is(err, want) {
			t.Errorf("%q: %v", content, err)
		}
	}
	if err := errors.Join(os.Remove(s.snapshotPath()), os.Symlink(t.TempDir(), s.snapshotPath())); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.ReadSnapshot(); !errors.Is(err, ErrIO) {
		t.Errorf("a directory: %v", err)
	}
	// What cannot be read may be all that is left of a lost store: it is not replaced.
	if err := s.WriteSnapshot(context.Background(), t0); !errors.Is(err, ErrIO) {
		t.Errorf("a directory: %v", err)
	}
}

// The last snapshot may be the only copy of a lost store: its leases stay until the pool is known
// again.
func TestSnapshotKeepsLeasesOfUnknownPools(t *testing.T) {
	s := open(t)
	ctx := context.Background()
	update(t, s, func(tx *Tx) error {
		return errors.Join(put(tx, fresh("10.0.0.5", "db-0", "c1")), tx.SetAdopted(testPool))
	})
	if err := s.WriteSnapshot(ctx, t0); err != nil {
		t.Fatal(err)
	}
	whole := func(when string, want int) {
		t.Helper()
		if got, _, err := s.ReadSnapshot(); err != nil || len(got) != want {
			t.Errorf("%s: %d leases, %v; want %d", when, len(got), err, want)
		}
	}
	os.Remove(s.path())
	if err := s.WriteSnapshot(ctx, t0); !errors.Is(err, ErrLost) {
		t.Errorf("lost store: %v", err)
	}
	whole("lost", 1)
	later := t0
	later.Wall = t0.Wall.Add(time.Hour)
	other := fresh("10.0.0.9", "web-0", "c9")
	other.Pool.Network = "other"
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, other), tx.SetAdopted(other.Pool)) }) // replaced
	if err := s.WriteSnapshot(ctx, later); err != nil {
		t.Error(err)
	}
	whole("one network is known again", 2)
	if _, at, _ := s.ReadSnapshot(); !at.Equal(t0.Wall) {
		t.Errorf("with old leases: the time is %v", at)
	}
	update(t, s, func(tx *Tx) error {
		return errors.Join(put(tx, fresh("10.0.0.6", "db-1", "c2")), tx.SetAdopted(testPool))
	})
	if err := s.WriteSnapshot(ctx, later); err != nil {
		t.Error(err)
	}
	whole("all are", 2)
	if _, at, _ := s.ReadSnapshot(); !at.Equal(later.Wall) {
		t.Errorf("without old leases: the time is %v", at)
	}
	os.Remove(s.path())
	os.Remove(s.mark()) // as after a boot
	if err := s.WriteSnapshot(ctx, t0); !IsEmpty(err) {
		t.Errorf("unused store: %v", err)
	}
	whole("removed while the node was off", 2)
	update(t, s, func(tx *Tx) error {
		if tx.Lost() != "" {
			t.Errorf("reported as lost: %s", tx.Lost())
		}
		return errors.Join(put(tx, other), tx.SetAdopted(other.Pool))
	})
	if err := s.WriteSnapshot(ctx, later); err != nil {
		t.Error(err)
	}
	whole("and one network is used again", 2)
	if got, _, _ := s.ReadSnapshot(); !slices.ContainsFunc(got,
		func(l lease.Lease) bool { return l.Pool == testPool }) {
		t.Errorf("the other network is missing: %+v", got)
	}
}

// A record that is damaged now may have been copied before.
func TestSnapshotKeepsRecordsDamagedSince(t *testing.T) {
	s := open(t)
	ctx := context.Background()
	a, b := fresh("10.0.0.5", "db-0", "c1"), fresh("10.0.0.6", "db-1", "c2")
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, a), put(tx, b), tx.SetAdopted(testPool)) })
	if err := s.WriteSnapshot(ctx, t0); err != nil {
		t.Fatal(err)
	}
	update(t, s, func(tx *Tx) error {
		return errors.Join(flip(tx, a), put(tx, fresh("10.0.0.7", "db-2", "c3")))
	})
	later := t0
	later.Wall = t0.Wall.Add(time.Hour)
	if err := s.WriteSnapshot(ctx, later); err != nil {
		t.Fatal(err)
	}
	got, at, err := s.ReadSnapshot()
	if err != nil || len(got) != 3 || !reflect.DeepEqual(got[0], a) {
		t.Errorf("%+v, %v", got, err)
	}
	if !at.Equal(t0.Wall) {
		t.Errorf("with old leases: the time is %v", at)
	}
	update(t, s, func(tx *Tx) error { // replaces the damaged record
		return errors.Join(put(tx, a), put(tx, fresh("10.0.0.8", "db-3", "c4")))
	})
	if err := s.WriteSnapshot(ctx, later); err != nil {
		t.Fatal(err)
	}
	if _, at, _ := s.ReadSnapshot(); !at.Equal(later.Wall) {
		t.Errorf("without old leases: the time is %v", at)
	}
}

func TestUnchangedSnapshotIsNotWritten(t *testing.T) {
	s := open(t)
	ctx := context.Background()
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	written := func(at lease.Instant) os.FileInfo {
		t.Helper()
		if err := s.WriteSnapshot(ctx, at); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(s.snapshotPath())
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	later := t0
	later.Wall = t0.Wall.Add(time.Hour)
	first := written(t0)
	if !os.SameFile(first, written(later)) {
		t.Error("written without a change")
	}
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.6", "db-1", "c2")) })
	if os.SameFile(first, written(later)) {
		t.Error("not written after a change")
	}
	if got, at, _ := s.ReadSnapshot(); len(got) != 2 || !at.Equal(later.Wall) {
		t.Errorf("%d leases of %v", len(got), at)
	}
}

func TestSnapshotInBatches(t *testing.T) {
	s := open(t)
	const n = 3*snapshotBatch + 1
	update(t, s, func(tx *Tx) error {
		var errs error
		for i := range n {
			errs = errors.Join(errs, put(tx, fresh(fmt.Sprintf("10.0.%d.%d", i/200, 1+i%200), fmt.Sprintf("p%d", i),
				fmt.Sprintf("c%d", i))))
		}
		return errs
	})
	if err := s.WriteSnapshot(context.Background(), t0); err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.ReadSnapshot(); err != nil || len(got) != n {
		t.Errorf("%d leases, %v", len(got), err)
	}
}

// flip damages the record of a lease.
func flip(tx *Tx, l lease.Lease) error {
	id, err := tx.poolID(l.Pool)
	if err != nil {
		return err
	}
	k := leaseKey(id, l.Address)
	b := bytes.Clone(tx.bucket(bucketLeases).Get(k))
	b[len(b)/2] ^= 1
	return tx.put(bucketLeases, k, b)
}

// A snapshot is of one store: one that takes its place meanwhile ends it.
func TestASnapshotIsOfOneStore(t *testing.T) {
	s := open(t)
	const n = snapshotBatch + 10
	fill := func(s *Store, pod string) {
		t.Helper()
		update(t, s, func(tx *Tx) error {
			for i := range n {
				if err := put(tx, fresh(fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), fmt.Sprint(pod, i),
					fmt.Sprint("c", i))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	other := open(t)
	fill(s, "db-")
	fill(other, "web-")
	views := 0
	ctx := WithTiming(context.Background(), func(Timing) {
		if views++; views == 1 {
			if err := os.Rename(other.path(), s.path()); err != nil {
				t.Error(err)
			}
		}
	})
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := s.WriteSnapshot(ctx, t0); err == nil {
		leases, _, _ := s.ReadSnapshot()
		t.Errorf("%d leases were copied, the first of %s, the last of %s",
			len(leases), leases[0].Name, leases[len(leases)-1].Name)
	}
	if ctx.Err() != nil {
		t.Error("it does not end")
	}
}
