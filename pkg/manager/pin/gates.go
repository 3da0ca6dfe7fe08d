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
	// maxGates is the maximum number of pods with gates that this replica has made or could not
	// lift, besides one after a probe. It limits how many pods are not scheduled if gates cannot be
	// lifted.
	maxGates = 9
	// maxNamespaceGates is the maximum number of them in one namespace.
	maxNamespaceGates = 5
	// probeInterval is the time from one probe to the next.
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
	// firstPause and maxPause are the limits of the time without gates after one was lifted too
	// late. Each pause is twice as long as the last one.
	firstPause = 2 * time.Second
	maxPause   = time.Minute
)

// A gateLimiter has the gates that this replica has made, or could not lift, and decides whether it
// may make another.
//
// The number of gates is limited. A gate counts from the admission of its pod until it is lifted,
// or the pod is found not to exist. If gates cannot be lifted, the limit is soon reached, and no
// gate is made until one was lifted. Namespaces share the limit fairly. A namespace in which a gate
// could not be lifted gets no further gates until one of its own was lifted. Once a gate was lifted
// in another namespace, the gates of the first one do not count any more, because only that
// namespace is affected.
//
// The gates of one tenant that cannot be lifted may use up the limit. While no gate is made, the
// limiter therefore probes pods of other namespaces that have no gate: a dry run shows whether the
// API server would let the manager change them. If so, one gate is made. If that is lifted, gates
// are made again. If it cannot be lifted, probes are not reliable, and there are none until a gate
// was lifted.
type gateLimiter struct {
	now func() time.Time

	mu         sync.Mutex
	gates      map[string]*gate // by "namespace/name"
	namespaces map[string]*namespaceGates
	watch      pause    // because a watch did not show an existing pod
	late       pause    // because gates of several namespaces were lifted late
	lateIn     []string // the namespaces with late gates, since one was last lifted in time
	freed      chan struct{}

	probe      string    // the key of the pod to probe, "" if there is none
	probed     time.Time // when it was chosen
	unreliable bool      // a gate could not be lifted after a probe, and none was lifted since
}

// A gate is the gate of a pod that this replica has admitted, or whose gate it could not lift.
type gate struct {
	admitted time.Time // zero if another replica admitted the pod
	uid      types.UID // "" until the pod is known to exist
	seen     bool      // a watch shows the pod
	counts   bool      // towards the limit
	failing  bool      // it could not be lifted
	lifted   time.Time // zero unless it was lifted from a pod that no watch has shown
}

// namespaceGates are the gates of one namespace.
type namespaceGates struct {
	waiting int  // admissions that wait
	gates   int  // gates that count
	failing int  // those of them that could not be lifted
	own     bool // a gate of another namespace was lifted while this one's could not
	proven  bool // a probe shows that gates can be lifted here
	pause   pause
}

// isIdle reports whether nothing needs to be remembered about a namespace.
func (n *namespaceGates) isIdle(now time.Time) bool {
	return n.waiting == 0 && n.gates == 0 && !n.proven && now.Sub(n.pause.until) > maxPause
}

// A pause is a time in which no gate is made. After it gates are made one at a time, until one is
// lifted in time.
type pause struct {
	until  time.Time
	length time.Duration // 0 if there was no pause since a gate was last lifted in time
}

func (p *pause) isOn(now time.Time) bool { return now.Before(p.until) }

// isRecent reports whether no gate was lifted in time since the pause began.
func (p *pause) isRecent() bool { return p.length > 0 }

// begin begins a pause, twice as long as the last one, unless one is on. It reports whether it did.
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

// admit makes one attempt of Admit. If it makes sense to wait, it returns a channel that is closed
// when another attempt should be made. Its cases are in the order of their precedence.
func (l *gateLimiter) admit(key string) (admitted bool, freed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if g := l.gates[key]; g != nil && g.uid != "" && g.lifted.IsZero() {
		// a pod of that name exists: this one will not be created, or the other one's deletion has
		// not been seen yet
		return !g.failing, nil
	}
	l.drop(key) // of an earlier call for the same pod, or an earlier attempt to create it
	n := l.namespace(key)
	failing, gates, reserved := l.count()
	switch {
	case n.failing > 0, n.pause.isOn(now), l.watch.isOn(now), l.late.isOn(now):
		return false, nil
	case failing >= maxGates && !n.proven:
		l.chooseProbe(key, now)
		return false, nil
	case failing >= maxGates && gates > failing:
		return false, l.freed // there is a gate after a probe already
	case failing >= maxGates:
	case (l.watch.isRecent() || l.late.isRecent()) && gates > 0, n.pause.isRecent() && n.gates > 0:
		return false, nil
	case gates >= maxGates, n.gates >= maxNamespaceGates, n.gates > 0 && gates+reserved >= maxGates:
		return false, l.freed
	}
	n.gates++
	l.gates[key] = &gate{admitted: now, counts: true}
	return true, nil
}

// count returns how many gates cannot be lifted, how many exist, and how many are reserved for
// namespaces that have none. Failing gates do not count if only those of their namespace fail.
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

// chooseProbe chooses a pod without a gate to be probed once it exists.
func (l *gateLimiter) chooseProbe(key string, now time.Time) {
	if !l.unreliable && now.Sub(l.probed) >= probeInterval {
		l.probe, l.probed = key, now
	}
}

// IsProbe reports whether a pod without a gate was chosen to be probed.
func (l *gateLimiter) IsProbe(p *podView) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.probe == keyOf(p) && !p.Gated
}

// TakeProbe is IsProbe, but reports true only once for each pod that was chosen.
func (l *gateLimiter) TakeProbe(p *podView) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probe != keyOf(p) || p.Gated {
		return false
	}
	l.probe = ""
	return true
}

// Probed records that the API server would let the manager change a pod. The next pod of its
// namespace gets a gate.
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
		maps.DeleteFunc(l.namespaces, func(_ string, other *namespaceGates) bool { return other.isIdle(now) })
		n = &namespaceGates{}
		l.namespaces[name] = n
	}
	return n
}

// free makes a gate count no longer.
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

func (l *gateLimiter) drop(key string) {
	l.free(key)
	delete(l.gates, key)
}

// Cancel records that a pod did not get the gate that Admit allowed.
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

// Seen records that a watch shows a pod.
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

// Gone records that a watch no longer shows a pod: it was deleted, or lacks the label that the
// watch selects. It reports whether the pod has to be read from the API server to find out which.
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

// Unseen reports whether a pod that no watch shows has to be read from the API server now, and
// returns when it was admitted.
func (l *gateLimiter) Unseen(key string) (admitted time.Time, unseen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[key]
	if g == nil || g.seen || g.admitted.IsZero() || !g.lifted.IsZero() || l.now().Sub(g.admitted) < unseenTimeout {
		return time.Time{}, false
	}
	return g.admitted, true
}

// Missing records that the API server has no such pod. It returns after how long the pod has to be
// read again, 0 if it will not be created any more.
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

// Unanswered records that a pod could not be read from the API server. It may have a gate.
func (l *gateLimiter) Unanswered(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(key, "")
}

// LiftedUnseen records that the gate of a pod that no watch has shown was lifted. It returns after
// how long Unwatched has to be called.
func (l *gateLimiter) LiftedUnseen(p *podView) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(p)
	l.drop(key)
	l.gates[key] = &gate{admitted: l.now(), uid: p.UID, lifted: l.now()}
	return unseenTimeout
}

// Unwatched begins a pause if no watch has shown a pod since its gate was lifted. It reports
// whether it did.
func (l *gateLimiter) Unwatched(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gates[key]; g == nil || g.lifted.IsZero() || l.now().Sub(g.lifted) < unseenTimeout {
		return false
	}
	delete(l.gates, key)
	return l.watch.begin(l.now())
}

// Failed records that a gate could not be lifted. It reports whether the pod is the one of its
// namespace whose gate should be tried often.
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

// Late records that a gate was not lifted in time.
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

// Lifted records that the gate of a pod that a watch shows was lifted, and whether in time. It
// returns the pods whose gates could not be lifted before, and should be tried again.
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
