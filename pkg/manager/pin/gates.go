package pin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// gateTimeout is for how long a pod waits for its nomination; then its gate is lifted without
	// one.
	gateTimeout = 2 * time.Second
	// maxGates is how many pods may wait behind gates that this replica has made or could not lift,
	// but for one more after a probe. It bounds how many pods are held back if no gate can be
	// lifted any more.
	maxGates = 9
	// maxNamespaceGates is how many of them may be of one namespace.
	maxNamespaceGates = 5
	// probeInterval is the time from one probe to the next.
	probeInterval = time.Second
	// admissionWait is how long an admission waits at most until others' gates are lifted. The API
	// server gives the webhook two seconds.
	admissionWait = time.Second
	// unseenTimeout is after how long the API server is asked for a pod that this replica has
	// admitted and no watch shows.
	unseenTimeout = 500 * time.Millisecond
	// createTimeout is after how long an admitted pod that does not exist was not created: no
	// request lasts longer.
	createTimeout = 75 * time.Second
	// firstPause and maxPause bound for how long no gate is made after one was lifted too late.
	// Each pause doubles the next.
	firstPause = 2 * time.Second
	maxPause   = time.Minute
)

// A gateLimiter knows the gates that this replica has made, or could not lift, and decides whether
// another may be made.
//
// A pod holds one of a few places from its admission until its gate is lifted or the API server
// says that the pod does not exist. Namespaces take turns. If gates cannot be lifted, the places
// are soon taken, and no gate is made until one has been lifted. A namespace in which a gate could
// not be lifted gets none until one of its gates was lifted, and its pods hold no places once a
// gate was lifted in another namespace: the cause is its own.
//
// All places may be held by one tenant whose gates cannot be lifted. So while no gate is made, the
// API server is asked about pods of other namespaces, which have no gate, whether it would let the
// manager change them (a probe, with a dry run). Where it would, one gate is made; if that is
// lifted, gates are made again. If not, what the API server said about probes does not hold for
// gates, and there is no further probe until a gate has been lifted.
type gateLimiter struct {
	now func() time.Time

	mu         sync.Mutex
	gates      map[string]*gate // by "namespace/name"
	namespaces map[string]*namespaceGates
	watch      pause    // because a watch did not show a pod that exists
	late       pause    // because gates of several namespaces were lifted late
	lateIn     []string // the namespaces, since a gate was last lifted in time
	freed      chan struct{}

	probe  string    // the key of the pod that has no gate, and about which the API server is to be asked
	probed time.Time // when it was chosen
	misled bool      // a gate could not be lifted in spite of a probe, and none was lifted since
}

// A gate is one of a pod that this replica has admitted, or whose gate it could not lift.
type gate struct {
	admitted time.Time // zero: by another replica
	uid      types.UID // "" until the pod is known to exist
	seen     bool      // a watch shows the pod
	place    bool      // it holds one of the places
	failing  bool      // it could not be lifted
	lifted   time.Time // of a pod that no watch has shown
}

// namespaceGates are a namespace's.
type namespaceGates struct {
	waiting int // admissions
	places  int
	failing int
	own     bool // gates of another namespace were lifted while this one's could not
	proven  bool // a probe says that gates can be lifted here
	pause   pause
}

// unknown reports whether nothing is known about a namespace.
func (n *namespaceGates) unknown(now time.Time) bool {
	return n.waiting == 0 && n.places == 0 && !n.proven && now.Sub(n.pause.until) > maxPause
}

// A pause is a time in which no gate is made.
type pause struct {
	until  time.Time
	length time.Duration
}

func (p *pause) is(now time.Time) bool { return now.Before(p.until) }

// tries reports whether a pause is over and nothing was lifted in time since. Then gates are made
// one at a time.
func (p *pause) tries() bool { return p.length > 0 }

// extend begins a pause, twice as long as the last one, if none is on, and reports whether it did.
func (p *pause) extend(now time.Time) bool {
	if p.is(now) {
		return false
	}
	p.length = min(max(2*p.length, firstPause), maxPause)
	p.until = now.Add(p.length)
	return true
}

func newGateLimiter(now func() time.Time) *gateLimiter {
	return &gateLimiter{now: now, gates: map[string]*gate{}, namespaces: map[string]*namespaceGates{},
		freed: make(chan struct{})}
}

func namespaceOf(key string) string {
	namespace, _, _ := strings.Cut(key, "/")
	return namespace
}

// Admit reports whether a pod that is being admitted may get a gate. Where the places are taken by
// pods whose gates are about to be lifted, it waits for a place for at most admissionWait.
func (l *gateLimiter) Admit(ctx context.Context, key string) bool {
	admitted, freed := l.admit(key)
	if freed == nil {
		return admitted
	}
	ctx, cancel := context.WithTimeout(ctx, admissionWait)
	defer cancel()
	l.wait(key, 1)
	defer l.wait(key, -1)
	for freed != nil {
		select {
		case <-freed:
			admitted, freed = l.admit(key)
		case <-ctx.Done():
			return false
		}
	}
	return admitted
}

// wait adds to the admissions that wait for a place in the namespace of a pod.
func (l *gateLimiter) wait(key string, change int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.namespace(key)
	if n.waiting += change; n.waiting == 0 {
		l.wake() // a place was reserved for this namespace
	}
}

// wake has all admissions that wait look for a place.
func (l *gateLimiter) wake() {
	close(l.freed)
	l.freed = make(chan struct{})
}

// admit returns a channel that is closed when it is to be called again, where it is worth waiting.
func (l *gateLimiter) admit(key string) (admitted bool, freed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if g := l.gates[key]; g != nil && g.uid != "" && g.lifted.IsZero() {
		// it exists: either this one will not, or a watch is about to show the deletion of that one
		return !g.failing, nil
	}
	l.drop(key) // an earlier call of the same admission, or an earlier attempt to create the pod
	n := l.namespace(key)
	failing, places, reserved := 0, 0, 0
	for _, other := range l.namespaces {
		if other.waiting > 0 && other.places == 0 {
			reserved++ // for the next turn
		}
		if other.own {
			places += other.places - other.failing
			continue
		}
		places += other.places
		failing += other.failing
	}
	switch {
	case n.failing > 0, n.pause.is(now), l.watch.is(now), l.late.is(now):
		return false, nil
	case failing >= maxGates && !n.proven:
		l.chooseProbe(key, now)
		return false, nil
	case failing >= maxGates && places > failing:
		return false, l.freed // the gate after a probe
	case failing >= maxGates:
	case (l.watch.tries() || l.late.tries()) && places > 0, n.pause.tries() && n.places > 0:
		return false, nil
	case places >= maxGates, n.places >= maxNamespaceGates, n.places > 0 && places+reserved >= maxGates:
		return false, l.freed
	}
	n.places++
	l.gates[key] = &gate{admitted: now, place: true}
	return true, nil
}

// chooseProbe remembers a pod that gets no gate, to ask the API server about it once it exists.
func (l *gateLimiter) chooseProbe(key string, now time.Time) {
	if !l.misled && now.Sub(l.probed) >= probeInterval {
		l.probe, l.probed = key, now
	}
}

// IsProbe reports whether the API server is to be asked whether it would let the manager change a
// pod that has no gate.
func (l *gateLimiter) IsProbe(p *podView) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.probe == keyOf(p) && !p.Gated
}

// TakeProbe reports whether the pod is the probe, once for each probe.
func (l *gateLimiter) TakeProbe(p *podView) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probe != keyOf(p) || p.Gated {
		return false
	}
	l.probe = ""
	return true
}

// Probed says that the API server would let the manager change a pod. The next pod of its namespace
// gets a gate.
func (l *gateLimiter) Probed(p *podView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.namespace(keyOf(p)).proven = true
}

func (l *gateLimiter) namespace(key string) *namespaceGates {
	name := namespaceOf(key)
	n := l.namespaces[name]
	if n == nil {
		now := l.now()
		maps.DeleteFunc(l.namespaces, func(_ string, other *namespaceGates) bool { return other.unknown(now) })
		n = &namespaceGates{}
		l.namespaces[name] = n
	}
	return n
}

// free gives a gate's place back.
func (l *gateLimiter) free(key string) {
	g := l.gates[key]
	if g == nil || !g.place {
		return
	}
	n := l.namespace(key)
	n.places--
	if g.failing {
		n.failing--
		n.own = n.own && n.failing > 0
	}
	g.place, g.failing = false, false
	l.wake()
}

func (l *gateLimiter) drop(key string) {
	l.free(key)
	delete(l.gates, key)
}

// Cancel says that an admitted pod gets no gate after all.
func (l *gateLimiter) Cancel(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(key)
}

// Own reports whether this replica has admitted the pod with a gate.
func (l *gateLimiter) Own(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[key]
	return g != nil && !g.admitted.IsZero()
}

// Seen says that a watch shows a pod.
func (l *gateLimiter) Seen(p *podView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	g := l.gates[key]
	switch {
	case g == nil, g.uid == "" && !p.Gated, g.uid != "" && g.uid != p.UID:
		// It is about another pod of that name.
	case !p.Gated, !g.lifted.IsZero():
		l.drop(key)
	default:
		g.uid, g.seen = p.UID, true
		if p.Gates > 1 && !g.failing {
			l.free(key) // for as long as others hold it back, nobody waits for us
		}
	}
}

// Gone says that a watch shows a pod no more: it is deleted, or lacks the label by which the watch
// finds it. It reports whether the API server has to be asked which.
func (l *gateLimiter) Gone(p *podView) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	g := l.gates[key]
	if g == nil || g.uid != p.UID {
		return false
	}
	if g.admitted.IsZero() {
		l.drop(key)
		return false
	}
	g.uid, g.seen = "", false
	g.admitted = l.now().Add(-unseenTimeout)
	return true
}

// Unseen reports whether the API server is to be asked for a pod now, and when it was admitted.
func (l *gateLimiter) Unseen(key string) (admitted time.Time, ask bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[key]
	if g == nil || g.seen || g.admitted.IsZero() || !g.lifted.IsZero() || l.now().Sub(g.admitted) < unseenTimeout {
		return time.Time{}, false
	}
	return g.admitted, true
}

// Missing says that the API server has no such pod, or not yet. It returns after how long to ask
// again; 0: never.
func (l *gateLimiter) Missing(key string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[key]
	if g == nil {
		return 0
	}
	l.free(key)
	age := l.now().Sub(g.admitted)
	if age > createTimeout {
		delete(l.gates, key)
		return 0
	}
	return age
}

// Unanswered says that the API server did not say whether a pod exists. It may have a gate.
func (l *gateLimiter) Unanswered(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(key, "")
}

// LiftedUnseen says that the gate is lifted of a pod that no watch has shown. It returns after how
// long Unwatched is to be asked.
func (l *gateLimiter) LiftedUnseen(p *podView) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	l.drop(key)
	l.gates[key] = &gate{admitted: l.now(), uid: p.UID, lifted: l.now()}
	return unseenTimeout
}

// Unwatched finds out whether a watch has shown a pod after its gate was lifted. If not, no gate is
// made for a while; it reports whether that begins now.
func (l *gateLimiter) Unwatched(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gates[key]; g == nil || g.lifted.IsZero() || l.now().Sub(g.lifted) < unseenTimeout {
		return false
	}
	delete(l.gates, key)
	return l.watch.extend(l.now())
}

// Failed says that a gate could not be lifted. It reports whether the pod is the one of its
// namespace that is tried often.
func (l *gateLimiter) Failed(p *podView) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	l.fail(key, p.UID)
	for other, g := range l.gates {
		if g.failing && other < key && namespaceOf(other) == p.Namespace {
			return false
		}
	}
	return true
}

func (l *gateLimiter) fail(key string, uid types.UID) {
	g := l.gates[key]
	if g == nil {
		g = &gate{}
		l.gates[key] = g
	}
	if uid != "" {
		g.uid = uid
	}
	g.lifted = time.Time{}
	n := l.namespace(key)
	if !g.place {
		g.place = true
		n.places++
	}
	if !g.failing {
		g.failing = true
		n.failing++
		l.misled = l.misled || n.proven
		n.proven = false
	}
}

// Late says that a gate was lifted, or will be, but not in time.
func (l *gateLimiter) Late(p *podView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.namespace(keyOf(p)).pause.extend(now)
	if !slices.Contains(l.lateIn, p.Namespace) {
		l.lateIn = append(l.lateIn, p.Namespace)
	}
	if len(l.lateIn) > 1 {
		l.late.extend(now)
		l.lateIn = nil
	}
}

// Lifted says that the gate is lifted of a pod that a watch shows, and whether in time. It returns
// the pods whose gates could not be lifted before, and are to be tried again.
func (l *gateLimiter) Lifted(p *podView, inTime bool) (again []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	g := l.gates[key]
	failed, seen := g != nil && g.failing, g != nil && g.seen
	l.drop(key)
	l.misled = false
	for name, n := range l.namespaces {
		n.proven = false
		if name != p.Namespace {
			n.own = n.failing > 0
		}
	}
	if !inTime && !failed {
		return nil
	}
	l.late, l.lateIn = pause{}, nil
	if seen {
		l.watch = pause{}
	}
	if n := l.namespaces[p.Namespace]; n != nil {
		n.pause = pause{}
	}
	if !failed {
		return nil
	}
	for other, g := range l.gates {
		if g.failing {
			again = append(again, other)
		}
	}
	return again
}
