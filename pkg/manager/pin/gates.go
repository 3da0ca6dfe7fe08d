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
	// gateTimeout is how long a pod waits for its nomination. Then its gate is lifted without one.
	gateTimeout = 2 * time.Second
	// maxGates is the maximum number of gates that count (see gateLimiter), besides one after a
	// probe. It limits how many pods are not scheduled if gates cannot be lifted.
	maxGates = 9
	// maxNamespaceGates is the maximum number of gates that count in one namespace.
	maxNamespaceGates = 5
	// probeInterval is the shortest time from one probe to the next.
	probeInterval = time.Second
	// admissionWait is the maximum time that an admission waits until other gates are lifted. The
	// webhook's timeout is two seconds.
	admissionWait = time.Second
	// unseenTimeout is the time after which an admitted pod that no watch has shown is read from
	// the API server.
	unseenTimeout = 500 * time.Millisecond
	// createTimeout is the time after which an admitted pod that does not exist will not be created
	// any more. No request takes longer.
	createTimeout = 75 * time.Second
	// firstPause and maxPause are the shortest and the longest pause, a time in which no gate is
	// made. Each pause is twice as long as the last one.
	firstPause = 2 * time.Second
	maxPause   = time.Minute
)

// A gateLimiter decides whether the webhook may add a gate to a pod. It works like a circuit
// breaker, so that pods are not delayed when gates cannot be lifted, for example because an
// admission policy forbids it or the watch of pods is stalled. The webhook calls Admit; the
// nominator reports with the other methods what becomes of each gate. The limiter knows only the
// gates that this replica has made, and those that it could not lift. It identifies a pod by its
// key "namespace/name", because a pod has no UID when it is admitted.
//
// At most maxGates gates may count. A gate counts from the admission of its pod until it is lifted
// or the pod turns out not to exist. If gates fail, the limit is soon reached, and no gate is made
// until one is lifted. Namespaces share the limit. A namespace with a failing gate gets no further
// gate until one of its own was lifted. Once a gate was lifted in another namespace, the failing
// gates of the first one do not count any more, because only that namespace is affected.
//
// If the failing gates of one tenant use up the limit, the limiter chooses pods of other
// namespaces, which then have no gate, for a probe: a dry run that shows whether the API server
// would let the manager lift a gate there. If so, the namespace is proven, and its next pod gets a
// gate. If that gate is lifted, gates are made again. If it fails, probes are not reliable, and
// there is no further probe until a gate was lifted.
type gateLimiter struct {
	now func() time.Time

	mu         sync.Mutex
	gates      map[string]*gate // by "namespace/name"
	namespaces map[string]*namespaceGates
	watch      pause         // after a watch did not show an existing pod
	late       pause         // after gates of several namespaces were late
	lateIn     []string      // the namespaces with late gates, since a gate was last lifted in time
	freed      chan struct{} // closed when admissions that wait should try again

	probe      string    // the key of the pod to probe, "" if there is none
	probed     time.Time // when that pod was chosen
	unreliable bool      // a gate failed after a probe, and none was lifted since
}

// A gate is what the limiter knows of the gate of one pod.
type gate struct {
	admitted time.Time // zero if another replica admitted the pod
	uid      types.UID // "" until the pod is known to exist
	seen     bool      // a watch shows the pod
	counts   bool      // the gate counts towards the limit
	failing  bool      // the gate could not be lifted
	lifted   time.Time // zero unless it was lifted from a pod that no watch has shown
}

// namespaceGates are the gates of one namespace.
type namespaceGates struct {
	waiting int  // admissions that wait
	gates   int  // gates that count
	failing int  // gates that count and could not be lifted
	own     bool // a gate of another namespace was lifted, so only this namespace's gates fail
	proven  bool // a probe has shown that gates can be lifted here
	pause   pause
}

// isIdle reports whether nothing needs to be remembered about a namespace.
func (n *namespaceGates) isIdle(now time.Time) bool {
	return n.waiting == 0 && n.gates == 0 && !n.proven && now.Sub(n.pause.until) > maxPause
}

// A pause is a time in which no gate is made. After the pause gates are made one at a time, until
// one is lifted in time (isRecent).
type pause struct {
	until  time.Time
	length time.Duration // 0 if there was no pause since a gate was last lifted in time
}

func (p *pause) isOn(now time.Time) bool { return now.Before(p.until) }

// isRecent reports whether there was a pause, which may have ended, and no gate was lifted in time
// since it began.
func (p *pause) isRecent() bool { return p.length > 0 }

// begin starts a pause that is twice as long as the last one, and reports true. If a pause is on,
// it does nothing and reports false.
func (p *pause) begin(now time.Time) bool {
	if p.isOn(now) {
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

// Admit reports whether a pod that is being admitted may get a gate. If the limit is reached by
// gates that are about to be lifted, it waits for up to admissionWait.
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

// wait adds to the number of admissions that wait in the namespace of a pod.
func (l *gateLimiter) wait(key string, change int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.namespace(key)
	if n.waiting += change; n.waiting == 0 {
		l.wake() // one gate was reserved for this namespace
	}
}

// wake makes all admissions that wait try again.
func (l *gateLimiter) wake() {
	close(l.freed)
	l.freed = make(chan struct{})
}

// admit decides once whether the pod with this key may be created with a gate. Admit repeats it. If
// the pod may not, freed is closed when another call may allow it; nil means that the caller does
// not wait. All conditions are in one function because their order matters: those that concern
// every gate come before those that count gates.
func (l *gateLimiter) admit(key string) (admitted bool, freed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if g := l.gates[key]; g != nil && g.uid != "" && g.lifted.IsZero() {
		// A pod of that name has a gate, which counts already. Either the API server will reject
		// the new pod, or the old pod is deleted and its deletion was not seen yet. In the second
		// case the new pod takes over the gate's place, unless that gate could not be lifted.
		return !g.failing, nil
	}
	l.drop(key) // the gate of an earlier request to create this pod
	n := l.namespace(key)
	failing, gates, reserved := l.count()
	switch {
	case n.failing > 0, n.pause.isOn(now), l.watch.isOn(now), l.late.isOn(now):
		return false, nil // gates here, or all gates, could not be lifted in time
	case failing >= maxGates && !n.proven:
		l.chooseProbe(key, now)
		return false, nil
	case failing >= maxGates && gates > failing:
		return false, l.freed // one gate of a proven namespace is being tried already
	case failing >= maxGates: // the next gate of a proven namespace is tried: allowed
	case (l.watch.isRecent() || l.late.isRecent()) && gates > 0, n.pause.isRecent() && n.gates > 0:
		return false, nil // one gate at a time for a while after a pause
	case gates >= maxGates, n.gates >= maxNamespaceGates, n.gates > 0 && gates+reserved >= maxGates:
		return false, l.freed
	}
	n.gates++
	l.gates[key] = &gate{admitted: now, counts: true}
	return true, nil
}

// count returns the number of failing gates, of all gates, and of gates that are reserved for
// namespaces which wait and have none. It omits the failing gates of a namespace if only that
// namespace is affected (own).
func (l *gateLimiter) count() (failing, gates, reserved int) {
	for _, n := range l.namespaces {
		if n.waiting > 0 && n.gates == 0 {
			reserved++
		}
		if n.own {
			gates += n.gates - n.failing
			continue
		}
		gates += n.gates
		failing += n.failing
	}
	return failing, gates, reserved
}

// chooseProbe chooses a pod that is admitted without a gate for a probe, once the pod exists,
// unless probes are not reliable or one was chosen less than probeInterval ago.
func (l *gateLimiter) chooseProbe(key string, now time.Time) {
	if !l.unreliable && now.Sub(l.probed) >= probeInterval {
		l.probe, l.probed = key, now
	}
}

// IsProbe reports whether a pod was chosen for a probe. A pod with a gate is not probed.
func (l *gateLimiter) IsProbe(p *podView) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.probe == keyOf(p) && !p.Gated
}

// TakeProbe reports whether a pod was chosen for a probe, and ends the choice, so that it reports
// true only once for each pod that was chosen.
func (l *gateLimiter) TakeProbe(p *podView) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probe != keyOf(p) || p.Gated {
		return false
	}
	l.probe = ""
	return true
}

// Probed records that a probe of the pod succeeded: the API server would let the manager lift a
// gate. The next pod of the namespace gets a gate.
func (l *gateLimiter) Probed(p *podView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.namespace(keyOf(p)).proven = true
}

// namespace returns the entry for the namespace of a pod, and makes one if there is none.
func (l *gateLimiter) namespace(key string) *namespaceGates {
	name := namespaceOf(key)
	n := l.namespaces[name]
	if n == nil {
		now := l.now()
		maps.DeleteFunc(l.namespaces, func(_ string, other *namespaceGates) bool { return other.isIdle(now) })
		n = &namespaceGates{}
		l.namespaces[name] = n
	}
	return n
}

// free ends the counting of a gate, but keeps the gate, so that the nominator still reads and lifts
// it. It has no effect if the gate does not count.
func (l *gateLimiter) free(key string) {
	g := l.gates[key]
	if g == nil || !g.counts {
		return
	}
	n := l.namespace(key)
	n.gates--
	if g.failing {
		n.failing--
		n.own = n.own && n.failing > 0
	}
	g.counts, g.failing = false, false
	l.wake()
}

// drop ends the counting of a gate and forgets the gate.
func (l *gateLimiter) drop(key string) {
	l.free(key)
	delete(l.gates, key)
}

// Cancel forgets a gate that Admit permitted, because the pod was created without it.
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

// Seen is called with the present state of a pod that a watch shows. If the pod's gate was lifted,
// the gate is forgotten.
func (l *gateLimiter) Seen(p *podView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	g := l.gates[key]
	switch {
	case g == nil, g.uid == "" && !p.Gated, g.uid != "" && g.uid != p.UID:
		// The gate is of another pod of that name.
	case !p.Gated, !g.lifted.IsZero():
		l.drop(key)
	default:
		g.uid, g.seen = p.UID, true
		if p.Gates > 1 && !g.failing {
			l.free(key) // the pod has gates of others too, and is not delayed by ours alone
		}
	}
}

// Gone is called when a watch no longer shows a pod, because the pod was deleted or lacks the label
// that the watch selects. It reports whether the pod has to be read from the API server to find out
// which, that is, whether this replica admitted the pod with a gate.
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

// Unseen reports whether a pod has to be read from the API server now, because this replica
// admitted it with a gate more than unseenTimeout ago and no watch shows it. admitted is the time
// of the admission.
func (l *gateLimiter) Unseen(key string) (admitted time.Time, unseen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[key]
	if g == nil || g.seen || g.admitted.IsZero() || !g.lifted.IsZero() || l.now().Sub(g.admitted) < unseenTimeout {
		return time.Time{}, false
	}
	return g.admitted, true
}

// Missing is called when the API server does not have a pod with a gate that this replica admitted.
// The pod may still be created, so the gate no longer counts, but is not forgotten before
// createTimeout. Missing returns the delay before the pod should be read again, or 0 if it need not
// be read again. The delay is the time since the admission, so that it doubles with each attempt.
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

// Unanswered is called when a pod could not be read from the API server. Its gate counts as
// failing, because the pod may exist.
func (l *gateLimiter) Unanswered(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(key, "")
}

// LiftedUnseen is called after the gate of a pod that no watch shows was lifted. The watch may be
// stalled. LiftedUnseen returns the delay after which Unwatched must be called, which finds out.
func (l *gateLimiter) LiftedUnseen(p *podView) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	l.drop(key)
	l.gates[key] = &gate{admitted: l.now(), uid: p.UID, lifted: l.now()}
	return unseenTimeout
}

// Unwatched starts a pause if LiftedUnseen was called for a pod and no watch has shown the pod in
// the meantime. It reports whether it started a pause; then the caller restarts the watch.
func (l *gateLimiter) Unwatched(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gates[key]; g == nil || g.lifted.IsZero() || l.now().Sub(g.lifted) < unseenTimeout {
		return false
	}
	delete(l.gates, key)
	return l.watch.begin(l.now())
}

// Failed is called when the gate of a pod could not be lifted. It reports whether the pod is the
// first by name of the pods with failing gates in its namespace. The caller retries that pod often,
// to learn when gates can be lifted again, and the others rarely.
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

// fail records that a gate fails. uid is "" if it is not known.
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
	if !g.counts {
		g.counts = true
		n.gates++
	}
	if !g.failing {
		g.failing = true
		n.failing++
		l.unreliable = l.unreliable || n.proven
		n.proven = false
	}
}

// Late is called when a gate was lifted later than gateTimeout, or will be. It starts a pause for
// the pod's namespace, and one for all namespaces if gates of more than one namespace were late.
func (l *gateLimiter) Late(p *podView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.namespace(keyOf(p)).pause.begin(now)
	if !slices.Contains(l.lateIn, p.Namespace) {
		l.lateIn = append(l.lateIn, p.Namespace)
	}
	if len(l.lateIn) > 1 {
		l.late.begin(now)
		l.lateIn = nil
	}
}

// Lifted is called after the gate of a pod was lifted. inTime is true if that took at most
// gateTimeout. If the gate could not be lifted before, Lifted returns the keys of all pods with
// failing gates, because they may be lifted now.
func (l *gateLimiter) Lifted(p *podView, inTime bool) (again []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	g := l.gates[key]
	failed, seen := g != nil && g.failing, g != nil && g.seen
	l.drop(key)
	l.unreliable = false
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
