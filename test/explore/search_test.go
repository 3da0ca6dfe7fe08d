package explore

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// search is a breadth-first search of a model: all states that one event leads to, then all that
// two lead to, and so on. So the first counter-example is one of the shortest.
type search struct {
	*simulation
	progress func(string) // gets a line after each depth; may be nil
	begun    time.Time

	visited     map[key]int32
	probed      map[key]bool // see leaks
	reached     []edge       // by the number of a state
	frontier    []*found
	next        []*found
	sampled     map[int32]*found // states whose successors are compared
	taken       map[kind]bool    // events that have happened
	transitions int
	compared    int
	depth       int
	complete    bool
	failure     *failure
}

// edge is how a state was reached first.
type edge struct {
	from int32
	by   event
}

// found is a state whose successors are searched.
type found struct {
	number int32
	disk   []byte
	node   node
}

// failure is a state, or an event that leads there, that breaks an invariant.
type failure struct {
	from int32
	by   event
	why  string
}

// How many states are sampled, to compare their successors with those of states that have the same
// canonical form: one in sampleEvery, with at most so many comparisons for each thousand
// transitions.
const (
	sampleEvery = 7
	comparisons = 4
)

func newSearch(t *testing.T, c config) *search {
	t.Helper()
	root, err := os.MkdirTemp(tmpfs(), "explore")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	w, err := newSimulation(t, c, root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return &search{
		simulation: w, begun: time.Now(),
		visited: map[key]int32{}, probed: map[key]bool{}, sampled: map[int32]*found{},
		taken: map[kind]bool{},
	}
}

// tmpfs returns a directory in memory, "" if there is none.
func tmpfs() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// run searches until there is no new state, an invariant is broken, or a limit is reached.
func (s *search) run() {
	s.begin()
	for s.failure == nil && len(s.frontier) > 0 {
		if s.limits.depth > 0 && s.depth == s.limits.depth {
			return
		}
		s.level()
		if s.outOfTime() {
			return
		}
		s.depth++
		if s.progress != nil {
			s.progress(s.row())
		}
		s.frontier, s.next = s.next, nil
	}
	s.complete = s.failure == nil
}

func (s *search) begin() {
	s.prepare()
	s.visit(-1, event{}, "")
	s.frontier, s.next = s.next, nil
}

// prepare restores the initial state.
func (w *simulation) prepare() {
	w.restore(image{Files: map[string]file{}})
	w.node = newNode(w.config)
	if w.known {
		unknown := lease.Attachment{ContainerID: "unknown", IfName: ifName}
		must(w.verbs().Release(context.Background(), unknown, w.where()))
	}
	w.kernel.pass(step)
	w.capture(w.kernel.now().Wall)
	w.operations() // discards those of prepare: a call is killed at its own
}

// level searches the successors of every state of the frontier.
func (s *search) level() {
	for i, f := range s.frontier {
		if s.failure != nil || s.outOfTime() {
			return
		}
		s.eachNext(f, func(e event, why string) { s.visit(f.number, e, why) })
		s.frontier[i] = nil
	}
}

func (s *search) outOfTime() bool { return s.limits.time > 0 && time.Since(s.begun) > s.limits.time }

// eachNext runs every event that may happen in a state, and each call again for every operation
// that it can be killed at. The simulation is in the state after the event when fn is called.
func (w *simulation) eachNext(f *found, fn func(e event, why string)) {
	from := unpack(f.disk)
	w.restore(from)
	w.node = f.node
	before := w.read()
	for _, e := range w.enabled() {
		w.restore(from)
		w.node, w.before, w.delWasServed = f.node, before, f.node.sandboxes[e.sandbox].delServed
		out := w.do(e)
		records, kernel := w.records, w.kernel
		fn(e, w.account(e, out))
		if f.node.killsLeft == 0 || !e.isCall() {
			continue
		}
		for i, left := range interrupted(from, w.splitRecords(records, e, from, f.node)) {
			e.killed = i + 1
			w.kill(e, from, f.node, kernel, left)
			fn(e, w.account(e, outcome{}))
		}
	}
}

// visit checks the invariants of a state and enqueues it if it is new.
func (s *search) visit(from int32, e event, why string) {
	c := s.read()
	if why == "" {
		why = s.examine(e, c)
	}
	k := s.keyOf(c)
	s.taken[e.kind] = true
	s.transitions++
	if why != "" {
		s.fail(from, e, why)
		return
	}
	number, known := s.visited[k]
	if !known {
		number = int32(len(s.reached))
		s.visited[k] = number
		s.reached = append(s.reached, edge{from, e})
		s.enqueue(c, number, from, e)
	} else if sample := s.sampled[number]; sample != nil && s.compared*1000 < s.transitions*comparisons {
		s.compare(sample, from, e)
	}
}

func (s *search) enqueue(c contents, number, from int32, e event) {
	f := &found{number, s.current.pack(), s.node}
	why := s.leaks(c, func(k key) bool {
		seen := s.probed[k]
		s.probed[k] = true
		return seen
	})
	s.capture(s.kernel.now().Wall)
	s.next = append(s.next, f)
	if number%sampleEvery == 0 {
		s.sampled[number] = f
	}
	if why != "" {
		s.fail(from, e, why)
	}
}

// fail records the first failure.
func (s *search) fail(from int32, e event, why string) {
	if s.failure == nil {
		s.failure = &failure{from, e, why}
	}
}

// compare searches the successors of two states with the same canonical form. They have to be the
// same as well, else the canonical form leaves out something that matters.
func (s *search) compare(first *found, from int32, e event) {
	second := &found{first.number, s.current.pack(), s.node}
	one, other := s.nextForms(first), s.nextForms(second)
	s.compared++
	if diff := difference(one, other); diff != "" {
		s.fail(from, e, fmt.Sprintf("the canonical form is wrong: the first by %v\n%s", s.path(first.number), diff))
	}
}

// nextForms returns the canonical forms of the successors of a state, by key.
func (w *simulation) nextForms(f *found) map[key]string {
	out := map[key]string{}
	w.eachNext(f, func(e event, why string) {
		c := w.read()
		out[w.keyOf(c)] = w.describe(e) + " " + why + "\n" + w.form(c)
	})
	return out
}

func difference(one, other map[key]string) string {
	var out []string
	for k, text := range one {
		if _, both := other[k]; !both {
			out = append(out, "only after the first: "+text)
		}
	}
	for k, text := range other {
		if _, both := one[k]; !both {
			out = append(out, "only after the second: "+text)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
