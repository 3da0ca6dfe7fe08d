package explore

import (
	"slices"
	"testing"
)

// modelNamed returns one of the models.
func modelNamed(t *testing.T, name string) config {
	t.Helper()
	i := slices.IndexFunc(models, func(c config) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no model %q", name)
	}
	return models[i]
}

// TestAnAddressChangesHandsInOneCall has a call end the hold of an address and give the address to
// its own pod. The call is killed at each of its operations. host-local then has a file of every
// lease, or leasehold's next call writes it.
func TestAnAddressChangesHandsInOneCall(t *testing.T) {
	s := newSearch(t, modelNamed(t, "adopted"))
	w := s.simulation
	w.prepare()
	before := &found{disk: w.current.pack(), node: w.node}
	for _, e := range []event{{kind: add}, {kind: hostAdd, sandbox: 1}, {kind: stop, sandbox: 1}} {
		before = w.after(t, before, e)
	}
	kills := 0
	w.eachNext(before, func(e event, _ string) {
		if e.kind == add && e.sandbox == 2 {
			kills = max(kills, e.killed)
		}
	})
	if kills == 0 {
		t.Fatal("the call has no operation at which it can be killed")
	}
	for i := range kills {
		at := w.after(t, before, event{kind: add, sandbox: 2, killed: i + 1})
		at = w.after(t, at, event{kind: add, sandbox: 2})
		w.after(t, at, event{kind: hostAdd, sandbox: 3})
	}
}

// after returns the state after an event, which must break no invariant.
func (w *simulation) after(t *testing.T, from *found, want event) (next *found) {
	t.Helper()
	w.eachNext(from, func(e event, why string) {
		if e != want {
			return
		}
		if why != "" {
			t.Errorf("%s: %s", w.describe(e), why)
		}
		next = &found{disk: w.current.pack(), node: w.node}
	})
	if next == nil {
		t.Fatalf("%s: cannot happen", w.describe(want))
	}
	return next
}
