package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
)

// TestFailedCallRemovesNoFile verifies that a file goes with its lease or not at all.
func TestFailedCallRemovesNoFile(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	w.after(2 * hour)
	failure := errors.New("a failure after the end of the hold")
	err := w.service.Node.Update(t.Context(), w.where(), func(c *operation.Call) error {
		if err := c.Collect(c.Tx.InPool(w.where().Pool)); err != nil {
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
	w.same("leases", w.leases(), "10.0.0.2=db-0/Held")
	w.same("files", w.files(), "10.0.0.2=#held:db/db-0:hold")
}

// An ADD passes over a limited number of files of dead containers.
func TestFilesOfDeadContainers(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "k"})
	for i := range maxDead + 1 {
		addr, container := fmt.Sprintf("10.0.0.%d", 3+i), fmt.Sprintf("gone%d", i)
		w.hostLocal(addr, container)
		w.cached(container, addr)
	}
	check.Equal(t, w.add(ask{container: "c1"}), "10.0.0.3")
}

// A repeated ADD after the loss of the store imports the pool once, and then searches the files of
// its container.
func TestRepeatedAfterLoss(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	repeated := ask{pod: "db-0", container: "c1", window: hour}
	addr := w.add(repeated)
	w.wipe(w.storeFile())
	check.Equal(t, w.add(repeated), addr)
	check.Equal(t, len(w.warned), 1, "warnings", w.warned)
}
