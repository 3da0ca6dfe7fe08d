package ipam

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

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
