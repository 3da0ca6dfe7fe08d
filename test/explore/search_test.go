package explore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// search is a breadth-first search of a model: all states that one event leads to, then all that
// two lead to, and so on. So the first counter-example is one of the shortest.
type search struct {
	config
	simulations []*simulation // one for each worker
	progress    func(string)  // gets a line after each depth; may be nil
	begun       time.Time

	sync.Mutex
	visited     map[key]int32
	probed      map[key]bool // see leaks
	reached     []edge       // by the number of a state
	frontier    []*found
	next        []*found
	sampled     map[int32]*found // states whose successors are compared
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

func newSearch(t *testing.T, c config, workers int) *search {
	t.Helper()
	base, err := os.MkdirTemp(tmpfs(), "explore")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	s := &search{
		config: c, begun: time.Now(),
		visited: map[key]int32{}, probed: map[key]bool{}, sampled: map[int32]*found{},
	}
	for i := range workers {
		root := filepath.Join(base, fmt.Sprintf("%02d", i))
		w, err := newSimulation(t, c, root)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.close)
		s.simulations = append(s.simulations, w)
	}
	return s
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
	w := s.simulations[0]
	w.prepare()
	s.visit(w, -1, event{}, "")
	s.frontier, s.next = s.next, nil
}

// prepare restores the initial state.
func (w *simulation) prepare() {
	w.restore(image{Files: map[string]file{}})
	w.node = newNode(w.config)
	for n := range w.nets {
		if w.known {
			unknown := lease.Attachment{ContainerID: "unknown", IfName: ifName}
			must(w.plugin().Release(context.Background(), unknown, w.where(n)))
		}
	}
	w.kernel.pass(step)
	w.capture(w.kernel.now().Wall)
}

// level searches the successors of every state of the frontier.
func (s *search) level() {
	var workers sync.WaitGroup
	todo := make(chan *found)
	for _, w := range s.simulations {
		workers.Go(func() {
			for f := range todo {
				s.expand(w, f)
			}
		})
	}
	for i, f := range s.frontier {
		if s.stop() {
			break
		}
		todo <- f
		s.frontier[i] = nil
	}
	close(todo)
	workers.Wait()
}

func (s *search) stop() bool {
	s.Lock()
	defer s.Unlock()
	return s.failure != nil || s.outOfTime()
}

func (s *search) outOfTime() bool { return s.limits.time > 0 && time.Since(s.begun) > s.limits.time }

func (s *search) expand(w *simulation, f *found) {
	s.eachNext(w, f, func(e event, why string) { s.visit(w, f.number, e, why) })
}

// eachNext runs every event that may happen in a state, and each call again for every operation
// that it can be killed at. The simulation is in the state after the event when fn is called.
func (s *search) eachNext(w *simulation, f *found, fn func(e event, why string)) {
	from := w.unpackHere(f.disk)
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
		for i, left := range interrupted(from, records) {
			w.restore(left)
			w.node = f.node
			w.kernel = kernel
			e.killed = i + 1
			w.noteUnsynced(from, e)
			fn(e, w.account(e, outcome{}))
		}
	}
}

// unpackHere unpacks an image for this simulation's directory.
func (w *simulation) unpackHere(b []byte) image { return unpack(b, []byte(w.root)) }

// visit checks the invariants of a state and enqueues it if it is new.
func (s *search) visit(w *simulation, from int32, e event, why string) {
	c := w.read()
	if why == "" {
		why = w.examine(c)
	}
	if why == "" {
		why = w.examineFence(e, w.before, c)
	}
	k := w.keyOf(c)
	s.Lock()
	s.transitions++
	if why != "" {
		s.fail(from, e, why)
		s.Unlock()
		return
	}
	number, known := s.visited[k]
	if !known {
		number = int32(len(s.reached))
		s.visited[k] = number
		s.reached = append(s.reached, edge{from, e})
	}
	sample, due := s.sampled[number], s.compared*1000 < s.transitions*comparisons
	s.Unlock()
	switch {
	case !known:
		s.enqueue(w, c, number, from, e)
	case sample != nil && due:
		s.compare(w, sample, from, e)
	}
}

func (s *search) enqueue(w *simulation, c contents, number, from int32, e event) {
	f := &found{number, w.current.pack([]byte(w.root)), w.node}
	why := w.leaks(c, func(k key) bool {
		s.Lock()
		defer s.Unlock()
		seen := s.probed[k]
		s.probed[k] = true
		return seen
	})
	w.capture(w.kernel.now().Wall)
	s.Lock()
	defer s.Unlock()
	s.next = append(s.next, f)
	if number%sampleEvery == 0 {
		s.sampled[number] = f
	}
	if why != "" {
		s.fail(from, e, why)
	}
}

// fail records the first failure. The caller holds the lock.
func (s *search) fail(from int32, e event, why string) {
	if s.failure == nil {
		s.failure = &failure{from, e, why}
	}
}

// compare searches the successors of two states with the same canonical form. They have to be the
// same as well, else the canonical form leaves out something that matters.
func (s *search) compare(w *simulation, first *found, from int32, e event) {
	second := &found{first.number, w.current.pack([]byte(w.root)), w.node}
	one, other := s.nextForms(w, first), s.nextForms(w, second)
	s.Lock()
	defer s.Unlock()
	s.compared++
	if diff := difference(one, other); diff != "" {
		s.fail(from, e, "the canonical form is wrong: the first by "+s.describePath(w, first.number)+"\n"+diff)
	}
}

// nextForms returns the canonical forms of the successors of a state, by key.
func (s *search) nextForms(w *simulation, f *found) map[key]string {
	out := map[key]string{}
	s.eachNext(w, f, func(e event, why string) {
		c := w.read()
		out[w.keyOf(c)] = w.describe(e) + " " + why + "\n" + w.form(c, w.namings()[0])
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
