package ipam

import (
	"fmt"
	"slices"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

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
	w.must(w.service.ApplyQueue(t.Context()))
	held, bound := w.leaseOf("held"), w.leaseOf("bound")
	superseded, err := lease.Apply(w.leaseOf("superseded"), lease.Supersede{}, w.service.Node.Clock())
	w.must(err)
	w.must(w.service.Node.Store.Update(t.Context(), func(tx *store.Tx) error {
		return tx.Put(superseded.Pool, superseded.Address, superseded)
	}))
	former := maintain.Ref{Pool: held.Pool, Address: held.Address, ID: "0011223344556677"}
	pods := [][]maintain.Ref{{maintain.RefTo(held), former}, {maintain.RefTo(superseded)}, {maintain.RefTo(bound)}}
	for _, want := range [][]maintain.Ref{{maintain.RefTo(held)}, nil} {
		ended, err := w.service.EndHolds(t.Context(), pods, "gone")
		if w.must(err); !slices.Equal(ended, want) {
			t.Errorf("ended %v, want %v", ended, want)
		}
	}
	ended, err := w.service.RevokePods(t.Context(), pods, "released")
	if w.must(err); !slices.Equal(ended, []maintain.Ref{maintain.RefTo(bound)}) {
		t.Errorf("revoked %v", ended)
	}
}
