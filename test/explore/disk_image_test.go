package explore

import (
	"slices"
	"testing"
)

// TestImagesMove packs a state whose journal contains the path of a file, and unpacks it in the
// directory of another worker. The journal skips what it cannot read.
func TestImagesMove(t *testing.T) {
	s := newSearch(t, modelNamed(t, "adopted"), 2)
	from, to := s.simulations[0], s.simulations[1]
	from.prepare()
	for _, e := range []event{{kind: hostAdd}, {kind: agent}} {
		from.replay(e)
	}
	before := from.read()
	to.restore(to.unpackHere(from.current.pack([]byte(from.root))))
	to.node = from.node
	after := to.read()
	if len(before.last) == 0 || len(after.last) != len(before.last) {
		t.Errorf("the journal is about %v, want %v", after.last, before.last)
	}
	if from.keyOf(before) != to.keyOf(after) {
		t.Errorf("got\n%s\nwant\n%s", to.form(after, to.namings()[0]), from.form(before, from.namings()[0]))
	}
	if len(after.broken) > 0 {
		t.Errorf("Check: %v", after.broken)
	}
}

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
	s := newSearch(t, modelNamed(t, "adopted"), 1)
	w := s.simulations[0]
	w.prepare()
	before := &found{disk: w.current.pack([]byte(w.root)), node: w.node}
	for _, e := range []event{{kind: add}, {kind: hostAdd, sandbox: 1}, {kind: stop, sandbox: 1}} {
		before = s.after(t, w, before, e)
	}
	kills := 0
	s.eachNext(w, before, func(e event, _ string) {
		if e.kind == add && e.sandbox == 2 {
			kills = max(kills, e.killed)
		}
	})
	if kills == 0 {
		t.Fatal("the call has no operation at which it can be killed")
	}
	for i := range kills {
		at := s.after(t, w, before, event{kind: add, sandbox: 2, killed: i + 1})
		at = s.after(t, w, at, event{kind: add, sandbox: 2})
		s.after(t, w, at, event{kind: hostAdd, sandbox: 3})
	}
}

// after returns the state after an event, which must break no invariant.
func (s *search) after(t *testing.T, w *simulation, from *found, want event) (next *found) {
	t.Helper()
	s.eachNext(w, from, func(e event, why string) {
		if e != want {
			return
		}
		if why != "" {
			t.Errorf("%s: %s", w.describe(e), why)
		}
		next = &found{disk: w.current.pack([]byte(w.root)), node: w.node}
	})
	if next == nil {
		t.Fatalf("%s: cannot happen", w.describe(want))
	}
	return next
}
