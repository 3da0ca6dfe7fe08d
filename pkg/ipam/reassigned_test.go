package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

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
