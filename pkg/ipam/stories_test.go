package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

const hour = time.Hour

// One sandbox yields at least three DELs, the last after the
// next one's ADD.
func TestLateDelsOfTheOldSandboxChangeNothing(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "old", window: hour})
	w.stop("old")
	w.add(ask{pod: "db-0", container: "new", window: hour})
	before, err := os.ReadFile(w.service.Store.Dirs().State + "/leases.db")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.del("old")
	}
	after, _ := os.ReadFile(w.service.Store.Dirs().State + "/leases.db")
	if string(before) != string(after) {
		t.Error("a late DEL has written")
	}
	w.same("leases", w.leases(), "10.0.0.2=db-0/Bound")
	if err := w.service.Verify(context.Background(), w.request(ask{pod: "db-0", container: "new"})); err != nil {
		t.Error(err)
	}
	w.same("a third pod", w.add(ask{pod: "web-1", container: "c3"}), "10.0.0.3")
}

// eventsOf prints the journal of an address.
func (w *world) eventsOf(addr string) string {
	var out []string
	w.view(func(tx *store.Tx) {
		for _, n := range tx.Entries(0) {
			if n.Address == netip.MustParseAddr(addr) {
				out = append(out, string(n.Event))
			}
		}
	})
	return strings.Join(out, " ")
}

// Holds yield in this order: soft ones, the oldest first, and then firm ones, the earliest end
// first. Of two that end at the same time the older yields first.
func TestOrderInWhichHoldsYield(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.9")
	w.options.OnExhaustion, w.options.SoftHold = policy.Yield, 24*hour
	const forever = time.Duration(lease.Forever)
	windows := []time.Duration{forever, 3 * hour, 0, 2 * hour, forever, 0, 3*hour - time.Minute, 0}
	for i, window := range windows { // addresses 2 to 9
		w.add(ask{pod: fmt.Sprint("db-", i+2), container: fmt.Sprint("c", i+2), window: window})
	}
	for _, i := range []int{4, 5, 7, 9, 2, 3, 8, 6} { // 3 and 8 end at the same time
		w.after(time.Minute)
		w.stop(fmt.Sprint("c", i))
	}
	for i, want := range []int{4, 7, 9, 5, 3, 8, 2, 6} {
		w.same(fmt.Sprint("the one that yields as number ", i+1), w.add(ask{pod: fmt.Sprint("x", i),
			container: fmt.Sprint("x", i)}), fmt.Sprint("10.0.0.", want))
	}
}

func TestADelThatFindsTheStoreLockedIsSpooled(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := w.service.Store.Update(context.Background(), func(*store.Tx) error { // holds the lock
		return w.service.Release(ctx, on("c1", "eth0"), transact.Scope{})
	})
	if err != nil || len(w.warned) != 1 {
		t.Fatalf("%v, warned %q", err, w.warned)
	}
	w.burn("c1")
	w.after(50 * time.Minute)
	w.same("the DEL is not replayed yet", w.recorded(), "db-0=Bound")
	w.same("and is seen as done", w.leases(), "10.0.0.2=db-0/Firm")
	w.refused(ask{pod: "x", container: "c2"}, ErrExhausted, "1 firmly held")
	w.after(10 * time.Minute)
	w.same("the window began at the DEL", w.add(ask{pod: "x", container: "c2"}), "10.0.0.2")
}
