package transact

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// A call waits for host-local's lock as long as its scope says, or for lockMoment.
func TestWaitForHostLocal(t *testing.T) {
	for wait, want := range map[time.Duration]time.Duration{
		0: lockMoment, time.Millisecond: time.Millisecond, time.Minute: time.Minute,
	} {
		if got := newMirrors(t.Context(), wait, nil).wait; got != want {
			t.Errorf("scope %s: waits %s, want %s", wait, got, want)
		}
	}
}

// await keeps the lock of one pool, also for the next attempt, until release.
func TestAwaitAndRelease(t *testing.T) {
	dir := t.TempDir()
	first, second := lease.Pool{DataDir: dir, Network: "a"}, lease.Pool{DataDir: dir, Network: "b"}
	m := newMirrors(t.Context(), 0, nil)
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
