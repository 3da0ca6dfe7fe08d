package ipam

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func (w *world) survey() maintain.Survey {
	w.t.Helper()
	if w.released {
		w.settle() // as the agent does at once
	}
	_ = w.service.ApplyQueue(context.Background()) // the survey says why it fails
	v, err := w.service.Survey(context.Background())
	w.must(err)
	return v
}

// plan is what is due, as "release 10.0.0.2".
func (w *world) plan() string {
	w.t.Helper()
	return actionsOf(maintain.Plan(w.survey()))
}

func actionsOf(plan []maintain.Action) string {
	var out []string
	for _, a := range plan {
		out = append(out, fmt.Sprint(a.Do, " ", a.Lease.Address))
	}
	return strings.Join(out, ", ")
}

func (w *world) collect() string {
	w.t.Helper()
	plan := w.plan()
	_, err := w.service.Act(context.Background(), maintain.Plan(w.survey()))
	if errors.Is(err, store.ErrBusy) {
		return plan + " (busy)"
	}
	w.must(err)
	return plan
}

// A plan is old when Act performs it: leases that have changed since are not touched.
func TestAnOldPlanHarmsNobody(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "other", container: "c0"})
	w.add(ask{pod: "db-0", container: "c1", window: time.Hour})
	w.add(ask{pod: "db-1", container: "c2", window: time.Minute})
	w.add(ask{pod: "db-2", container: "c3", window: time.Hour})
	w.burn("c1")
	w.del("c2")
	w.burn("c2")
	w.after(59 * time.Second)
	w.burn("c3")
	old := w.survey()
	old.Now.Boot, old.Now.Wall = old.Now.Boot+time.Hour, old.Now.Wall.Add(time.Hour) // by a clock that runs ahead
	old.Last[maintain.RefTo(w.leaseOf("db-1"))] = lease.Dead
	plan := maintain.Plan(old)
	if len(plan) != 3 {
		t.Fatalf("planned: %+v", plan)
	}
	w.add(ask{pod: "db-0", container: "c1b", window: time.Hour}) // takes over
	w.add(ask{pod: "db-1", container: "c2b", window: time.Minute})
	w.netns["/run/netns/c3"] = w.leaseOf("db-2").Holder.Netns.Ino // never was dead
	done, err := w.service.Act(context.Background(), plan)
	must.Succeed(t, err)
	check.Empty(t, done, "performed")
	w.same("all live on", w.leases(),
		"10.0.0.2=other/Bound 10.0.0.3=db-0/Bound 10.0.0.4=db-1/Bound 10.0.0.5=db-2/Bound")
}

// refs are the leases of a pod.
func (w *world) refs(pod string) (refs []maintain.Ref) {
	for _, l := range w.all() {
		if l.Name == pod {
			refs = append(refs, maintain.RefTo(l))
		}
	}
	return refs
}

func (w *world) leaseOf(pod string) (found lease.Lease) {
	for _, l := range w.all() {
		if l.Name == pod {
			found = l
		}
	}
	return found
}

// A store that replaces a lost one counts its journal from the beginning. The agent, which asks for
// what comes after the last entry that it has seen, gets all entries of the new store.
func TestJournalOfAnotherStore(t *testing.T) {
	w := newWorld(t, "10.0.0.0/29")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	for after, want := range map[uint64]int{0: 1, 1: 0, 1000: 1} {
		entries, last, err := w.service.Journal(t.Context(), after)
		if err != nil || len(entries) != want || last != 1 {
			t.Errorf("after %d: %d entries, the last is %d, %v; want %d entries", after, len(entries), last, err, want)
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
		w.must(err)
		check.Slices(t, ended, want, "ended")
	}
	ended, err := w.service.RevokePods(t.Context(), pods, "released")
	w.must(err)
	check.Slices(t, ended, []maintain.Ref{maintain.RefTo(bound)}, "revoked")
}
