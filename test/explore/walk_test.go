package explore

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// walkLength is the number of events of one walk, which is far more than the search reaches, and
// often is how many times more often than in the search each event may happen.
const (
	walkLength = 40
	often      = 3
)

// TestWalks takes random walks through each model. The short form takes one, always the same; the
// long one takes as many as LIMIT permits, from SEED, or from a random seed. A walk that breaks an
// invariant is printed without the events that are not needed for that.
func TestWalks(t *testing.T) {
	seed, fixed := uint64(1), os.Getenv("LONG") == ""
	if text := os.Getenv("SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	} else if !fixed {
		seed = rand.Uint64()
	}
	for _, c := range models {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bound(t, &c)
			s := newSearch(t, c.moreOften())
			walks := 0
			for walks == 0 || !fixed && !s.outOfTime() {
				walks++
				path, why := s.walk(rand.New(rand.NewPCG(seed, uint64(walks))), walkLength)
				if why != "" {
					t.Fatalf("SEED=%d, walk %d: %s", seed, walks, s.counterExample(s.shortest(path, why), why))
				}
			}
			t.Logf("SEED=%d: %d walks of %d events", seed, walks, walkLength)
		})
	}
}

// moreOften returns the model with events that may happen more often.
func (c config) moreOften() config {
	with := map[kind]int{}
	for k, n := range c.with {
		with[k] = min(n*often, always)
	}
	c.with, c.kills = with, min(c.kills*often, always)
	return c
}

// walk takes a walk of random events from the initial state, until an event breaks an invariant. It
// returns the events.
func (s *search) walk(r *rand.Rand, length int) (path []event, why string) {
	s.prepare()
	for range length {
		all := s.enabled()
		if len(all) == 0 {
			break
		}
		e := all[r.IntN(len(all))]
		if s.killsLeft > 0 && e.isCall() && r.IntN(4) == 0 {
			e.killed = 1 + r.IntN(12)
		}
		e, why = s.take(e)
		if path = append(path, e); why != "" {
			return path, why
		}
	}
	return path, s.leaksNow()
}

// leaksNow returns what leaks does, without a change of the simulation.
func (s *search) leaksNow() string {
	from, n := s.current, s.node
	why := s.leaks(s.read(), func(key) bool { return false })
	s.capture(s.kernel.now().Wall)
	s.restore(from)
	s.node = n
	return why
}

// take runs an event, and returns which invariant it breaks.
func (w *simulation) take(e event) (taken event, why string) {
	w.before, w.delWasServed = w.read(), w.sandboxes[e.sandbox].delServed
	e, out, _ := w.attempt(e)
	if why = w.account(e, out); why == "" {
		why = w.examine(e, w.read())
	}
	return e, why
}

// retrace takes the events of a path that are possible, and returns those and which invariant they
// break.
func (s *search) retrace(path []event) (taken []event, why string) {
	s.prepare()
	for _, e := range path {
		plain := e
		plain.killed = 0
		if !slices.Contains(s.enabled(), plain) || e.killed > 0 && s.killsLeft == 0 {
			continue
		}
		e, why = s.take(e)
		if taken = append(taken, e); why != "" {
			return taken, why
		}
	}
	return taken, s.leaksNow()
}

// shortest returns a path without the events that are not needed to break the same invariant.
func (s *search) shortest(path []event, why string) []event {
	invariant, _, _ := strings.Cut(why, ":")
	began := time.Now()
	for again := true; again && time.Since(began) < 10*time.Minute; {
		again = false
		for i := len(path) - 1; i >= 0; i-- {
			shorter, found := s.retrace(slices.Delete(slices.Clone(path), i, i+1))
			if of, _, _ := strings.Cut(found, ":"); found != "" && of == invariant && len(shorter) < len(path) {
				path, again = shorter, true
				i = min(i, len(path))
			}
		}
	}
	return path
}
