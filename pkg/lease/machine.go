package lease

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

var (
	// ErrTaken is returned if the address belongs to another key, is in another pod's soft hold, or
	// belongs to an attachment without a window.
	ErrTaken = errors.New("the address belongs to another lease")
	// ErrHolderAlive is returned if an event requires that the (last) holder is dead, and that is
	// not proven.
	ErrHolderAlive = errors.New("the last holder of the address may still be alive")
	// ErrNotHolder is returned if an event names a container that does not hold the lease. A DEL
	// that is repeated late meets it: it changes nothing and succeeds.
	ErrNotHolder = errors.New("not the holder of the lease")
	// ErrNotDue is returned for an event that is too early.
	ErrNotDue = errors.New("not due yet")
	// ErrInvalid is returned for an event that is not possible in the state of the lease.
	ErrInvalid = errors.New("not possible in this state")
)

// Event is something that happens to a lease. Only this package implements it.
type Event interface {
	apply(Lease, Instant) (Lease, error)
}

// Apply returns the lease after the event, or the unchanged lease and one of the errors of this
// package.
func Apply(l Lease, e Event, now Instant) (Lease, error) {
	next, err := e.apply(l, now)
	if err != nil {
		return l, fmt.Errorf("%s of %s lease %s: %w", eventName(e), l.State, l.Address, err)
	}
	return next, nil
}

func eventName(e Event) string {
	name := fmt.Sprintf("%T", e)
	return name[len("lease."):]
}

// Bind gives the address to a holder: a new one, the one that has it already (nothing changes), a
// pod with the key of a hold (a claim), or a pod with the key of a bound lease whose holder is
// proven dead (a take-over).
type Bind struct {
	ID      string // of a new lease; a claimed lease keeps its ID
	Pool    Pool
	Address netip.Addr
	Set     string

	Namespace string
	Name      string
	UID       string
	Holder    Holder
	Window    time.Duration
	MaxWindow time.Duration
	Soft      time.Duration
	HeldLimit int

	LastHolder Liveness // of the lease's holder or last holder
}

func (e Bind) key() Key {
	return Key{Pool: e.Pool, Namespace: e.Namespace, Name: e.Name, IfName: e.Holder.IfName}
}

func (e Bind) apply(l Lease, now Instant) (Lease, error) {
	switch l.State {
	case None:
		return e.bound(Lease{ID: e.ID}, now), nil
	case Bound:
		if l.Holder.Is(e.Holder) && l.Pool == e.Pool {
			l.Holder = e.Holder // the namespace may be another one; nothing else changes
			return l, nil
		}
		if err := e.mayTakeOver(l); err != nil {
			return l, err
		}
		return e.bound(l, now), nil
	case Held:
		if err := e.mayClaim(l, now); err != nil {
			return l, err
		}
		return e.bound(l, now), nil
	}
	return l, ErrInvalid
}

// mayTakeOver returns nil if the pod may take over a bound lease: it has the key, the lease has a
// window, and the holder is dead. A namespace cannot contain two interfaces of the same name, so a
// container in the holder's own namespace has replaced it.
func (e Bind) mayTakeOver(l Lease) error {
	if l.Window == 0 || l.Key().IsZero() || l.Key() != e.key() {
		return ErrTaken
	}
	if e.LastHolder != Dead && !l.Holder.Netns.Same(e.Holder.Netns) {
		return ErrHolderAlive
	}
	return nil
}

func (e Bind) mayClaim(l Lease, now Instant) error {
	if l.Key().IsZero() || l.Key() != e.key() || l.Lapsed(now) {
		return ErrTaken
	}
	if !l.Firm && (e.UID == "" || e.UID != l.UID) {
		return ErrTaken
	}
	if e.LastHolder != Dead && !l.Holder.Netns.Same(e.Holder.Netns) {
		return ErrHolderAlive
	}
	return nil
}

func (e Bind) bound(l Lease, now Instant) Lease {
	return Lease{
		ID: l.ID, Pool: e.Pool, Address: e.Address, Set: e.Set, State: Bound,
		Namespace: e.Namespace, Name: e.Name, UID: e.UID, Holder: e.Holder, MAC: l.MAC,
		Window: e.Window, MaxWindow: e.MaxWindow, Soft: e.Soft, HeldLimit: e.HeldLimit, BoundAt: now,
		Owner: l.Owner, Extra: l.Extra,
	}
}

// Release is a DEL of the holder, or a GC that does not list it. It starts the window of the lease.
// If Limited is set, the range set has as many firm holds as it may, and the hold is soft.
type Release struct {
	Holder  Holder
	Limited bool
	// LastHolder matters only to a lease without a key: the address is free at once, as with
	// host-local, unless the holder is known to be alive.
	LastHolder Liveness
}

func (e Release) apply(l Lease, now Instant) (Lease, error) {
	if l.State != Bound || !l.Holder.Is(e.Holder) {
		return l, ErrNotHolder
	}
	return released(l, e.Limited, e.LastHolder, now), nil
}

// Orphan is the release of a holder that will get no DEL. It requires proof of its death, and
// starts the window as any release does (docs/design.md, "Release and orphans").
type Orphan struct {
	LastHolder Liveness
	Limited    bool
}

func (e Orphan) apply(l Lease, now Instant) (Lease, error) {
	if l.State != Bound {
		return l, ErrInvalid
	}
	if e.LastHolder != Dead {
		return l, ErrHolderAlive
	}
	return released(l, e.Limited, e.LastHolder, now), nil
}

func released(l Lease, limited bool, last Liveness, now Instant) Lease {
	keyed := l.Namespace != "" || l.Name != ""
	switch {
	case !l.Key().IsZero() && l.Window > 0 && !limited:
		return becomeHeld(l, true, l.Window, now)
	case keyed && l.Soft > 0, last == Alive:
		return becomeHeld(l, false, l.Soft, now)
	}
	return Lease{}
}

func becomeHeld(l Lease, firm bool, hold time.Duration, now Instant) Lease {
	l.State, l.Firm, l.Hold, l.ReleasedAt = Held, firm, hold, now
	l.RefusedAt, l.RefusedFor = Instant{}, ""
	return l
}

// Expire ends a hold whose time is over.
type Expire struct{ LastHolder Liveness }

func (e Expire) apply(l Lease, now Instant) (Lease, error) {
	if l.State != Held {
		return l, ErrInvalid
	}
	if !l.Lapsed(now) {
		return l, ErrNotDue
	}
	return ended(l, e.LastHolder)
}

// Yield ends a hold early because the pool is exhausted. A firm hold is ended only if the policy
// allows it.
type Yield struct {
	LastHolder Liveness
	Firm       bool // policy onExhaustion: yield
}

func (e Yield) apply(l Lease, _ Instant) (Lease, error) {
	if l.State != Held {
		return l, ErrInvalid
	}
	if l.Firm && (!e.Firm || l.Deferred()) {
		return l, ErrTaken
	}
	return ended(l, e.LastHolder)
}

func ended(l Lease, last Liveness) (Lease, error) {
	if last != Dead {
		return l, ErrHolderAlive
	}
	return Lease{}, nil
}

// Deferred reports whether the end of a firm hold was deferred beyond its window, because the pod
// is expected back.
func (l Lease) Deferred() bool { return l.State == Held && l.Firm && l.Hold > l.Window }

// Revoke takes the address from its pod: a release by an operator or the API, a hold outside of the
// ranges, or a request for another address. Force means that the operator does not care about the
// holder. Without Force, a holder that may be alive keeps the address out of use, but no longer for
// its key.
type Revoke struct {
	LastHolder Liveness
	Force      bool
}

func (e Revoke) apply(l Lease, now Instant) (Lease, error) {
	switch {
	case l.State == None:
		return l, ErrInvalid
	case e.Force, e.LastHolder == Dead:
		return Lease{}, nil
	case l.State == Bound:
		return l, ErrHolderAlive
	}
	return superseded(l, now), nil
}

// Refuse records that an ADD of a pod with the key was rejected because the holder may be alive.
// Only the first time is recorded for each pod.
type Refuse struct {
	// Newcomer is the UID of the pod. All pods without a UID count as one: each attempt of a pod
	// uses another container, so nothing else identifies it.
	Newcomer string
}

func (e Refuse) apply(l Lease, now Instant) (Lease, error) {
	if l.State == None {
		return l, ErrInvalid
	}
	if l.RefusedFor != e.Newcomer || l.RefusedAt.IsZero() {
		l.RefusedAt, l.RefusedFor = now, e.Newcomer
	}
	return l, nil
}

// Supersede takes the key from a lease whose holder is still alive Timeout after the first Refuse.
// The pod gets another address. This one no longer has the key, and its release starts no firm
// hold.
type Supersede struct {
	Newcomer string // as in Refuse
	Timeout  time.Duration
}

func (e Supersede) apply(l Lease, now Instant) (Lease, error) {
	if l.State == None {
		return l, ErrInvalid
	}
	waits := l.RefusedFor == e.Newcomer && !l.RefusedAt.IsZero()
	if e.Timeout > 0 && (!waits || now.Since(l.RefusedAt) < e.Timeout) {
		return l, ErrNotDue
	}
	return superseded(l, now), nil
}

func superseded(l Lease, now Instant) Lease {
	if l.State == Held {
		l.Hold, l.ReleasedAt = min(l.Remaining(now), max(l.Soft, time.Second)), now
	}
	l.Superseded, l.Firm, l.Window = true, false, 0
	l.RefusedAt, l.RefusedFor = Instant{}, ""
	return l
}

// SetWindow applies the annotation of the pod that has the lease (UID), as the agent reads it. A
// bound lease gets the window, as far as its configuration allows. A hold becomes what its release
// would have made of it: a soft one firm, a firm one longer, shorter or soft. An end that was
// deferred stays deferred.
type SetWindow struct {
	UID     string
	Window  time.Duration
	Owner   string // the controller that recreates the pod
	Limited bool   // the range set has as many firm holds as it may: a soft hold stays soft
}

func (e SetWindow) apply(l Lease, _ Instant) (Lease, error) {
	if l.State == None || l.Key().IsZero() {
		return l, ErrInvalid
	}
	if l.UID != e.UID {
		return l, ErrNotHolder
	}
	window, deferred := l.granted(e.Window), l.Deferred()
	l.Owner = e.Owner
	if window == l.Window {
		return l, nil
	}
	l.Window = window
	switch {
	case l.State == Bound:
	case window == 0:
		l.Firm, l.Hold = false, l.Soft
	case !l.Firm && e.Limited:
	case deferred:
		l.Hold = max(window, l.Hold)
	default:
		l.Firm, l.Hold = true, window
	}
	return l, nil
}

// SetMAC records the hardware address of the holder's interface, as the holder reports it. The
// lease keeps it for the recreated pod.
type SetMAC struct {
	Holder Holder
	MAC    string
}

func (e SetMAC) apply(l Lease, _ Instant) (Lease, error) {
	if l.State != Bound || !l.Holder.Is(e.Holder) {
		return l, ErrNotHolder
	}
	l.MAC = e.MAC
	return l, nil
}

// Defer puts off the end of a firm hold, so that at least Rest is left from now on, because the pod
// is expected back.
type Defer struct{ Rest time.Duration }

func (e Defer) apply(l Lease, now Instant) (Lease, error) {
	if l.State != Held || !l.Firm {
		return l, ErrInvalid
	}
	if l.Remaining(now) < e.Rest {
		l.Hold = now.Since(l.ReleasedAt) + e.Rest
	}
	return l, nil
}

// Rebase counts a hold of an earlier boot by the clock of this one. It is applied in the first call
// after a boot: the time since the release is computed once, by the wall clock, and later changes
// of the wall clock have no effect. A hold whose release is in the future starts again, because the
// wall clock is wrong now or was then.
type Rebase struct{}

func (Rebase) apply(l Lease, now Instant) (Lease, error) {
	if l.State != Held {
		return l, ErrInvalid
	}
	if now.BootID == "" || l.ReleasedAt.BootID == now.BootID {
		return l, ErrNotDue
	}
	passed := now.Since(l.ReleasedAt)
	released := Instant{Wall: now.Wall.Add(-passed), Boot: now.Boot - passed, BootID: now.BootID}
	if !now.isSet() && l.ReleasedAt.isSet() {
		released.Wall = l.ReleasedAt.Wall // the next boot may know the time
	}
	l.ReleasedAt = released
	return l, nil
}

// Validate returns an error if the lease violates an invariant of the type. It has one case for
// each invariant.
func (l Lease) Validate() error {
	switch {
	case l.State == None:
		return errors.New("a lease in state None has no record")
	case l.State != Bound && l.State != Held:
		return fmt.Errorf("state %d is unknown", int(l.State))
	case !l.Address.IsValid():
		return errors.New("no address")
	case l.Pool.Network == "":
		return errors.New("no network")
	case len(l.ID) != 16:
		return fmt.Errorf("id %q is not 16 hex digits", l.ID)
	case l.State == Bound && (l.Firm || l.Hold != 0 || !l.ReleasedAt.IsZero()):
		return errors.New("bound, with fields of a hold")
	case l.State == Held && l.ReleasedAt.IsZero():
		return errors.New("held without the time of its release")
	case l.State == Held && l.Firm && (l.Hold == 0 || l.Key().IsZero()):
		return errors.New("firmly held without a key or a length")
	case l.Window < 0 || l.MaxWindow < 0 || l.Soft < 0 || l.Hold < 0:
		return errors.New("negative time")
	}
	return nil
}
