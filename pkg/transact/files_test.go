package transact

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// A call waits for host-local's lock as long as its scope says, or for lockMoment.
func TestWaitForHostLocal(t *testing.T) {
	for wait, want := range map[time.Duration]time.Duration{
		0: lockMoment, time.Millisecond: time.Millisecond, time.Minute: time.Minute,
	} {
		if got := newFiles(t.Context(), wait, nil).wait; got != want {
			t.Errorf("scope %s: waits %s, want %s", wait, got, want)
		}
	}
}

// TestFilesAreWrittenUnderTheLock looks at both locks while a call writes host-local's files, and
// afterwards. A call that got the store's lock must not meet host-local's lock of a call before it,
// unless that one writes many files.
func TestFilesAreWrittenUnderTheLock(t *testing.T) {
	for _, n := range []int{1, soon, soon + 1} {
		dir := t.TempDir()
		p := lease.Pool{DataDir: dir, Network: "cbr0"}
		now := lease.Instant{Wall: time.Unix(1_700_000_000, 0), BootID: "boot-1"}
		newNode := func() *Node {
			return &Node{
				Store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}),
				Host:  host.New("/proc", host.DefaultBootIDFile),
				Clock: func() lease.Instant { return now },
			}
		}
		other, written := newNode(), 0
		isBusy := func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			err := other.Store.Update(ctx, store.Options{}, func(*store.Tx) error { return nil })
			if err != nil && !errors.Is(err, store.ErrBusy) {
				t.Fatal(err)
			}
			return err != nil
		}
		err := newNode().Update(t.Context(), Scope{}, func(c *Call) error {
			dir, err := c.files.use(p, true)
			if err != nil || !dir.Locked() {
				t.Fatalf("host-local's lock: %v", err)
			}
			for range n {
				c.files.after = append(c.files.after, func() {
					written++
					if isBusy() != (n <= soon) {
						t.Errorf("%d files: the store is locked while file %d is written: %v", n, written, n > soon)
					}
				})
			}
			return nil
		})
		if err != nil || written != n {
			t.Errorf("%d files: %d written, %v", n, written, err)
		}
		if isBusy() {
			t.Errorf("%d files: the store's lock is held after the call", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		d, err := hostlocal.Open(ctx, p)
		if err != nil {
			t.Errorf("%d files: host-local's lock: %v", n, err)
		} else {
			d.Close()
		}
		cancel()
	}
}

// await keeps the lock of one pool, also for the next attempt, until release.
func TestAwaitAndRelease(t *testing.T) {
	dir := t.TempDir()
	first, second := lease.Pool{DataDir: dir, Network: "a"}, lease.Pool{DataDir: dir, Network: "b"}
	m := newFiles(t.Context(), 0, nil)
	isLocked := func(p lease.Pool) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		d, err := hostlocal.Open(ctx, p)
		if err == nil {
			d.Close()
		} else if !errors.Is(err, store.ErrBusy) {
			t.Fatal(err)
		}
		return err != nil
	}
	expect := func(when string, a, b bool) {
		t.Helper()
		if isLocked(first) != a || isLocked(second) != b || m.open[first] != nil != a || m.open[second] != nil != b {
			t.Errorf("%s: locked %v, %v, open %v", when, isLocked(first), isLocked(second), m.open)
		}
	}
	if err := m.await(first); err != nil {
		t.Fatal(err)
	}
	expect("the first is awaited", true, false)
	m.reset()
	expect("the next attempt", true, false)
	if err := m.await(second); err != nil {
		t.Fatal(err)
	}
	expect("the second is awaited", false, true)
	m.release()
	expect("released", false, false)
	m.reset()
	expect("another attempt", false, false)
}

// A call whose store is removed in the middle of it is repeated with a new store, which knows that
// one was lost.
func TestFileRemovedDuringATransaction(t *testing.T) {
	dir := t.TempDir()
	n := &Node{
		Store: store.New(store.Dirs{State: dir, Run: filepath.Join(dir, "run")}),
		Host:  host.New("/proc", host.DefaultBootIDFile),
		Clock: func() lease.Instant { return lease.Instant{BootID: "boot-1"} },
	}
	runs, lost := 0, ""
	err := n.Update(t.Context(), Scope{}, func(c *Call) error {
		lost = c.Tx.Lost()
		if runs++; runs == 1 {
			os.Remove(filepath.Join(dir, "leases.db"))
		}
		return c.Tx.Count("n", 1)
	})
	if err != nil || runs != 2 || !strings.Contains(lost, "missing") {
		t.Errorf("%v after %d runs, lost: %q", err, runs, lost)
	}
}
