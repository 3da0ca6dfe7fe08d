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

	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

// search goes through a world breadth first: all states that one event leads to, then all that two
// lead to, and so on. So the first counter-example is one of the shortest.
type search struct {
	config
	worlds   []*world     // a worker each
	progress func(string) // gets a line after each depth; may be nil
	begun    time.Time

	sync.Mutex
	visited     map[key]int32
	probed      map[key]bool // see leaks
	reached     []edge       // by the number of a state
	frontier    []*found
	next        []*found
	sampled     map[int32]*found // states that are kept to compare what follows from them
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

// found is a state to go on from.
type found struct {
	number int32
	disk   []byte
	node   node
}

// failure is a state, or an event that leads there, that breaks a promise.
type failure struct {
	from int32
	by   event
	why  string
}

// How many states are kept to compare what follows from them with what follows from others that
// were taken for the same: one in so many, and so many comparisons at most for each thousand
// transitions.
const (
	sampleEvery = 7
	comparisons = 4
)

func newSearch(t testing.TB, c config, workers int) *search {
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
		w, err := newWorld(c, root)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.close)
		s.worlds = append(s.worlds, w)
	}
	return s
}

// tmpfs is where files cost nothing.
func tmpfs() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// run searches until there is nothing new, a promise is broken, or the limits are reached.
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
	w := s.worlds[0]
	w.prepare()
	s.settle(w, -1, event{}, "")
	s.frontier, s.next = s.next, nil
}

// prepare brings a world to its first state.
func (w *world) prepare() {
	w.restore(image{Files: map[string]file{}})
	w.node = newNode(w.config)
	for n := range w.nets {
		if w.known {
			nobody := ipam.Attachment{ContainerID: "nobody", IfName: ifName}
			must(w.service().Release(context.Background(), nobody, w.where(n)))
		}
	}
	w.kernel.pass(step)
	w.capture(w.kernel.now().Wall)
}

// level goes on from every state of the frontier.
func (s *search) level() {
	var workers sync.WaitGroup
	todo := make(chan *found)
	for _, w := range s.worlds {
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

func (s *search) expand(w *world, f *found) {
	s.eachNext(w, f, func(e event, why string) { s.settle(w, f.number, e, why) })
}

// eachNext makes every event happen that may happen in a state, and every call be killed wherever
// it can be. The world is in the state after it when fn is called.
func (s *search) eachNext(w *world, f *found, fn func(e event, why string)) {
	from := w.unpackHere(f.disk)
	w.restore(from)
	w.node = f.node
	before := w.read()
	for _, e := range w.enabled() {
		w.restore(from)
		w.node, w.before, w.wasHeard = f.node, before, f.node.boxes[e.box].heard
		out := w.do(e)
		records, kernel := w.records, w.kernel
		fn(e, w.account(e, out))
		if f.node.killsLeft == 0 || !e.isCall() {
			continue
		}
		for i, left := range remains(from, records) {
			w.restore(left)
			w.node = f.node
			w.kernel = kernel
			e.killed = i + 1
			w.remember(from, e)
			fn(e, w.account(e, outcome{}))
		}
	}
}

// unpackHere moves an image to this world's directory: its paths are in the store.
func (w *world) unpackHere(b []byte) image { return unpack(b, []byte(w.root)) }

// settle finds out whether a state is new, and judges it if it is.
func (s *search) settle(w *world, from int32, e event, why string) {
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
		s.keep(w, c, number, from, e)
	case sample != nil && due:
		s.compare(w, sample, from, e)
	}
}

func (s *search) keep(w *world, c contents, number, from int32, e event) {
	f := &found{number, w.is.pack([]byte(w.root)), w.node}
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

// fail keeps the shortest. The caller has the lock.
func (s *search) fail(from int32, e event, why string) {
	if s.failure == nil {
		s.failure = &failure{from, e, why}
	}
}

// compare goes on from two states that were taken for the same. What follows has to be the same as
// well, else the canonical form leaves out something that matters.
func (s *search) compare(w *world, first *found, from int32, e event) {
	second := &found{first.number, w.is.pack([]byte(w.root)), w.node}
	one, other := s.nextForms(w, first), s.nextForms(w, second)
	s.Lock()
	defer s.Unlock()
	s.compared++
	if diff := difference(one, other); diff != "" {
		s.fail(from, e, "the canonical form is wrong: the first by "+s.tellPath(w, first.number)+"\n"+diff)
	}
}

// nextForms are the states that follow, by their keys.
func (s *search) nextForms(w *world, f *found) map[key]string {
	out := map[key]string{}
	s.eachNext(w, f, func(e event, why string) {
		c := w.read()
		out[w.keyOf(c)] = w.tell(e) + " " + why + "\n" + w.form(c, w.namings()[0])
	})
	return out
}

func difference(one, other map[key]string) string {
	var out []string
	for k, text := range one {
		if _, both := other[k]; !both {
			out = append(out, "of the first alone: "+text)
		}
	}
	for k, text := range other {
		if _, both := one[k]; !both {
			out = append(out, "of the second alone: "+text)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
