package ipam

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// newService returns the service of a node that has had no pod.
func newService(t *testing.T) *Service {
	dir := t.TempDir()
	return &Service{Node: &transact.Node{
		Store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}),
		Host:  host.New("/proc", host.DefaultBootIDFile),
		Clock: func() lease.Instant { return lease.Instant{Wall: time.Now(), Boot: time.Hour, BootID: "b"} },
	}}
}

// A step that fails because of its own lease keeps no other one from being committed, once. One
// that fails because of the store ends them all.
func TestStepsThatFail(t *testing.T) {
	for failed, want := range map[error]string{
		errors.New("it fails"): "[0 2]",
		store.ErrDamaged:       "[0 2]",
		store.ErrIO:            "[0]",
		transact.ErrNoHostView: "[0]",
		lease.ErrHolderAlive:   "[0 2]",
		store.ErrBusy:          "[0]",
	} {
		s := newService(t)
		done, err := inSteps(t.Context(), s, []int{0, 1, 2}, func(c *transact.Call, i int) (bool, error) {
			if i == 1 {
				return true, failed
			}
			return true, errors.Join(c.Tx.BeginBoot("b"), c.Tx.Count("steps", 1))
		})
		if !errors.Is(err, failed) || fmt.Sprint(done) != want {
			t.Errorf("%v: %v, %v, want %s", failed, done, err, want)
		}
		err = s.Node.Store.View(t.Context(), func(tx *store.Tx) error {
			if n := tx.Counter("steps"); int(n) != len(done) {
				t.Errorf("%v: %d steps are committed, want %d", failed, n, len(done))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The leases that are returned as ended are those that were changed.
func TestEndedLeases(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	for i, pod := range []string{"held", "superseded", "bound"} {
		container := fmt.Sprint("c", i)
		w.add(ask{pod: pod, container: container, window: hour})
		if pod != "bound" {
			w.stop(container)
		}
	}
	w.must(w.service.Replay(t.Context()))
	held, bound := w.leaseOf("held"), w.leaseOf("bound")
	superseded, err := lease.Apply(w.leaseOf("superseded"), lease.Supersede{}, w.service.Node.Clock())
	w.must(err)
	w.must(w.service.Node.Store.Update(t.Context(), func(tx *store.Tx) error {
		return tx.Put(superseded.Pool, superseded.Address, superseded)
	}))
	former := Ref{held.Pool, held.Address, "0011223344556677"}
	pods := [][]Ref{{RefTo(held), former}, {RefTo(superseded)}, {RefTo(bound)}}
	for _, want := range [][]Ref{{RefTo(held)}, nil} {
		ended, err := w.service.EndHolds(t.Context(), pods, "gone")
		if w.must(err); !slices.Equal(ended, want) {
			t.Errorf("ended %v, want %v", ended, want)
		}
	}
	ended, err := w.service.RevokePods(t.Context(), pods, "released")
	if w.must(err); !slices.Equal(ended, []Ref{RefTo(bound)}) {
		t.Errorf("revoked %v", ended)
	}
}
