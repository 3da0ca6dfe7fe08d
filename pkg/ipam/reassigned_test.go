package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// TestReassignedAddress verifies that every use case that would change a lease begins
// with that of the container to which host-local has given the address: nothing of the former lease
// is recorded as done.
func TestReassignedAddress(t *testing.T) {
	bound := func(w *world) { w.add(ask{pod: "db-0", container: "c1", window: hour}) }
	held := func(w *world) {
		bound(w)
		w.stop("c1")
	}
	over := func(w *world) {
		held(w)
		w.after(2 * hour)
	}
	// Each gets the lease as it was before host-local gave the address away.
	tests := map[string]struct {
		before func(*world)
		call   func(context.Context, *world, lease.Lease) error
	}{
		"a DEL": {bound, func(ctx context.Context, w *world, _ lease.Lease) error {
			return w.service.Release(ctx, on("c1", "eth0"), w.where())
		}},
		"a GC": {bound, func(ctx context.Context, w *world, l lease.Lease) error {
			return w.service.Collect(ctx, l.Pool, []lease.Attachment{on("theirs", "eth0")})
		}},
		"a hold that is over": {over, func(ctx context.Context, w *world, _ lease.Lease) error {
			_, err := w.service.Assign(ctx, w.request(ask{pod: "x", container: "c2", requested: "10.0.0.9"}))
			return err
		}},
		"a boot": {bound, func(ctx context.Context, w *world, _ lease.Lease) error {
			w.reboot()
			w.unpack("c2")
			_, err := w.service.Assign(ctx, w.request(ask{pod: "x", container: "c2", requested: "10.0.0.9"}))
			return err
		}},
		"a release by its reservation": {held, func(ctx context.Context, w *world, l lease.Lease) error {
			return w.service.RevokePods(ctx, [][]maintain.Ref{{maintain.RefTo(l)}}, "by spec.release")
		}},
		"a release by an operator": {held, func(ctx context.Context, w *world, l lease.Lease) error {
			_, err := w.service.Revoke(ctx, func(o lease.Lease) bool { return o.ID == l.ID }, false, "by hand")
			return err
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.9")
			w.unpack("c2")
			tt.before(w)
			old := len(w.journal())
			l := w.leaseOf("db-0")
			w.wipe(w.path("10.0.0.2"))
			w.hostLocal("10.0.0.2", "theirs")
			if err := tt.call(context.Background(), w, l); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(w.leases(), "10.0.0.2=/Bound") || !strings.HasPrefix(w.files(), "10.0.0.2=theirs") {
				t.Errorf("leases %s, files %s", w.leases(), w.files())
			}
			for i, line := range w.journal()[old:] {
				if ours := strings.Contains(line, "db-0"); ours != (i == 0) || ours &&
					line != "Revoked db-0: host-local has given it to another container" {
					t.Errorf("the journal has: %s", line)
				}
			}
		})
	}
}

// TestManyReassignedAddresses verifies that they are found in one attempt, however many
// they are.
func TestManyReassignedAddresses(t *testing.T) {
	const n = 40
	w := newWorld(t, "10.0.0.0/24")
	for i := range n {
		w.add(ask{pod: fmt.Sprintf("db-%d", i), container: fmt.Sprintf("c%d", i), window: hour})
	}
	for i := range n {
		addr := fmt.Sprintf("10.0.0.%d", i+2)
		w.wipe(w.path(addr))
		w.hostLocal(addr, fmt.Sprintf("theirs%d", i))
	}
	w.reboot()
	attempts, clock := 0, w.service.Clock
	w.service.Clock = func() lease.Instant { attempts++; return clock() }
	w.add(ask{pod: "x", container: "x"})
	if attempts > 1 {
		t.Errorf("%d attempts", attempts)
	}
	if got := strings.Count(w.leases(), "=/Bound"); got != n {
		t.Errorf("%d leases of host-local's containers, want %d: %s", got, n, w.leases())
	}
}

// TestFailedCallRemovesNoFile verifies that a file goes with its lease or not at all.
func TestFailedCallRemovesNoFile(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	w.after(2 * hour)
	failure := errors.New("a failure after the end of the hold")
	err := w.service.Update(t.Context(), w.where().scope(), func(c *transact.Call) error {
		if err := c.Expire(c.Tx.InPool(w.where().Pool)); err != nil {
			return err
		}
		if l, err := c.Tx.Get(w.where().Pool, netip.MustParseAddr("10.0.0.2")); err != nil || l.State != lease.None {
			t.Errorf("the hold did not end: %v %v", l, err)
		}
		return failure
	})
	if !errors.Is(err, failure) || errors.Is(err, store.ErrBusy) {
		t.Fatal(err)
	}
	w.same("leases", w.leases(), "10.0.0.2=db-0/Firm")
	w.same("files", w.files(), "10.0.0.2=#held:db/db-0:firm")
}
