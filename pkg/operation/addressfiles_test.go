package operation

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestFilesAreWrittenUnderTheLock looks at both locks while a call writes host-local's files, and
// afterwards. A call that got the store's lock must not meet host-local's lock of a call before it.
func TestFilesAreWrittenUnderTheLock(t *testing.T) {
	dir := t.TempDir()
	p := lease.Pool{DataDir: dir, Network: "cbr0"}
	now := lease.Instant{Wall: time.Unix(1_700_000_000, 0), BootID: "boot-1"}
	n, other, written := newNode(dir, lease.Unknown, &now), newNode(dir, lease.Unknown, &now), false
	isBusy := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := other.Store.Update(ctx, func(*store.Tx) error { return nil })
		if err != nil && !errors.Is(err, store.ErrBusy) {
			t.Fatal(err)
		}
		return err != nil
	}
	n.Store.Timed = func(time.Duration) { // when the store's lock is released
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		d, err := hostlocal.Open(ctx, p)
		must.Succeed(t, err, "host-local's lock is held longer than the store's")
		d.Close()
	}
	err := n.Update(t.Context(), Scope{}, func(c *Call) error {
		_, err := c.files.use(p, true)
		must.Succeed(t, err, "host-local's lock")
		c.files.after = append(c.files.after, func() {
			if written = true; !isBusy() {
				t.Error("the store is not locked while a file is written")
			}
		})
		return nil
	})
	if err != nil || !written || isBusy() {
		t.Errorf("written: %v, %v; the store's lock is held after the call: %v", written, err, isBusy())
	}
}

// A call whose store is removed in the middle of it, or turns out to be damaged when it is read, is
// repeated with a new store, which knows that one was lost.
func TestFileRemovedDuringATransaction(t *testing.T) {
	for name, tt := range map[string]struct {
		before, during func(path string) error
		runs           int
		lost           string
	}{
		"removed": {func(string) error { return nil }, os.Remove, 2, "missing"},
		"a bucket is missing": {func(path string) error {
			db, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				return err
			}
			err = db.Update(func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("journal")) })
			return errors.Join(err, db.Close())
		}, func(string) error { return nil }, 1, "journal"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "state/leases.db")
			n := newNode(dir, lease.Unknown, &lease.Instant{BootID: "boot-1"})
			count := func(c *Call) error { return c.Tx.Count("n", 1) }
			must.Succeed(t, errors.Join(n.Update(t.Context(), Scope{}, count), tt.before(path)))
			runs, lost, p := 0, "", lease.Pool{DataDir: dir, Network: "cbr0"}
			err := n.Update(t.Context(), Scope{}, func(c *Call) error {
				if _, err := c.files.use(p, true); err != nil {
					return err
				}
				lost = c.Tx.Lost()
				if runs++; runs == 1 {
					if err := tt.during(path); err != nil {
						return err
					}
				}
				return count(c)
			})
			if err != nil || runs != tt.runs || !strings.Contains(lost, tt.lost) {
				t.Errorf("%v after %d runs, lost: %q", err, runs, lost)
			}
		})
	}
}
