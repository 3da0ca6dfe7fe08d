package ipam

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// yielded returns how many firm holds have yielded, by the counter of the store.
func (w *world) yielded() (n uint64) {
	w.view(func(tx *store.Tx) { n = tx.Counter("leases/yielded") })
	return n
}

// A namespace that firmly holds all addresses of a range set loses holds to pods of other
// namespaces, the one with the earliest end first, until it holds half of the set.
func TestHoldsOfOneNamespaceYieldDownToHalf(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.5")
	for i, window := range []time.Duration{time.Duration(lease.Forever), 3 * hour, hour, time.Duration(lease.Forever)} {
		pod := ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: window}
		w.add(pod)
		w.stop(pod.container)
	}
	w.refused(ask{pod: "x", container: "own"}, ErrExhausted, "0 bound, 4 firmly held")
	w.same("the earliest end", w.add(ask{pod: "x", namespace: "web", container: "x1"}), "10.0.0.4")
	w.same("journal", w.journal()[len(w.journal())-3],
		"Yielded db-2: to pod web/x: namespace db firmly held 4 of 4 addresses")
	w.same("also to a pod with a window", w.add(ask{pod: "y", namespace: "web", container: "y1", window: hour}),
		"10.0.0.3")
	w.refused(ask{pod: "z", namespace: "web", container: "z1"}, ErrExhausted, "2 bound, 2 firmly held")
	w.same("leases", w.leases(), "10.0.0.2=db-0/Firm 10.0.0.3=y/Bound 10.0.0.4=x/Bound 10.0.0.5=db-3/Firm")
	if n := w.yielded(); n != 2 {
		t.Errorf("%d holds have yielded, want 2", n)
	}
	w.same("the other holds are kept", w.add(ask{pod: "db-3", container: "d3"}), "10.0.0.5")
}

// A hold does not yield if that cannot be counted.
func TestNothingYieldsUncounted(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	for i := range 2 {
		w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: hour})
		w.stop(fmt.Sprint("c", i))
	}
	db, err := bbolt.Open(filepath.Join(w.stateDir(), "leases.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.Bucket([]byte("counters")).CreateBucket([]byte("leases/yielded")) // not a number
		return err
	}), db.Close())
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.tryAdd(ask{pod: "x", namespace: "web", container: "x1"})
	if !errors.Is(err, bbolterrors.ErrIncompatibleValue) {
		t.Errorf("%+v, %v", r, err)
	}
	w.same("leases", w.leases(), "10.0.0.2=db-0/Firm 10.0.0.3=db-1/Firm")
}

// Of holds without an end the oldest yields first.
func TestTheOldestOfHoldsWithoutEndYields(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	for i := range 3 {
		w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: time.Duration(lease.Forever)})
	}
	for _, i := range []int{1, 2, 0} {
		w.after(time.Minute)
		w.stop(fmt.Sprint("c", i))
	}
	w.same("the oldest", w.add(ask{pod: "x", namespace: "web", container: "x1"}), "10.0.0.3")
}

// A namespace may firmly hold more than half of a range set as long as the set has another address,
// be it in cool-down.
func TestNothingYieldsWhileThereIsAnotherAddress(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.5")
	for i := range 3 {
		w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: hour})
		w.stop(fmt.Sprint("c", i))
	}
	w.same("the free one", w.add(ask{pod: "x", namespace: "web", container: "x1"}), "10.0.0.5")
	w.stop("x1")
	w.same("the one in cool-down", w.add(ask{pod: "y", namespace: "web", container: "y1"}), "10.0.0.5")
	w.same("leases", w.leases(), "10.0.0.2=db-0/Firm 10.0.0.3=db-1/Firm 10.0.0.4=db-2/Firm 10.0.0.5=y/Bound")
	if n := w.yielded(); n != 0 {
		t.Errorf("%d holds have yielded, want none", n)
	}
}

// A hold yields neither while its last sandbox has the address, nor while its pod is expected back.
// Addresses that are bound do not count as held.
func TestHoldsThatDoNotYield(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	for i := range 3 {
		w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: hour})
	}
	other := ask{pod: "x", namespace: "web", container: "x1"}
	w.stop("c0")
	w.refused(other, ErrExhausted, "2 bound, 1 firmly held")
	w.del("c1") // its sandbox lives on
	w.after(time.Minute)
	if err := w.service.Defer(context.Background(), w.refs("db-0"), 2*hour); err != nil {
		t.Fatal(err)
	}
	w.refused(other, ErrExhausted, "1 bound, 2 firmly held")
	w.burn("c1")
	w.same("after its sandbox has ended", w.add(other), "10.0.0.3")
}
