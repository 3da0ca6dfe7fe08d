package lease

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

var (
	// ErrTaken is returned when the address belongs to somebody else: another
	// key, another pod's soft hold, or an attachment without a window.
	ErrTaken = errors.New("the address belongs to another lease")
	// ErrHolderAlive is returned when the move needs the (last) holder to be
	// dead, and that is not proven.
	ErrHolderAlive = errors.New("the last holder of the address may still be alive")
	// ErrNotHolder is returned when a release names somebody who does not hold
	// the lease. It is no failure: such a release changes nothing (I6).
	ErrNotHolder = errors.New("not the holder of the lease")
	// ErrNotDue is returned when the time of an event has not come.
	ErrNotDue = errors.New("not due yet")
	// ErrInvalid is returned for an event that has no meaning in this state.
	ErrInvalid = errors.New("event has no meaning in this state")
)

// Event is what may happen to a lease. The set is closed.
type Event interface {
	apply(Lease, Instant) (Lease, error)
}

// Apply returns the lease as it stands after the event, or the lease as it was
// and one of the package's errors. It never changes its argument.
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

// Bind gives the address to a holder: a fresh one, the one who has it already
// (nothing changes), the key's next one (a claim of a hold), or a newcomer of
// the key after a holder that is proven dead (a take-over).
type Bind struct {
	ID      string // for a fresh lease only; a claim keeps the lease's own
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

	LastHolder Liveness // of the lease's present or last holder
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
			l.Holder = e.Holder // the namespace may have moved; the rest stands
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

// mayTakeOver: only the key of a lease with a window has a claim on a bound
// address, and only after death. One namespace cannot hold the same interface
// twice, so a newcomer in the holder's own namespace has replaced it.
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

// Release is the holder's own DEL, or a GC that no longer lists it. It starts
// the window that is stored in the lease. Limited says that the range set may
// have no further firm hold: then the hold is soft.
type Release struct {
	Holder  Holder
	Limited bool
	// LastHolder matters to a lease without a key alone: it is free at once, as with
	// host-local, unless its holder is known to be alive.
	LastHolder Liveness
}

func (e Release) apply(l Lease, now Instant) (Lease, error) {
	if l.State != Bound || !l.Holder.Is(e.Holder) {
		return l, ErrNotHolder
	}
	return released(l, e.Limited, e.LastHolder, now), nil
}

// Orphan is the release of a holder that no DEL will ever come for. It needs
// proof of death, and starts the window like any release: an orphan is never
// purged (docs/design.md, "Release and orphans").
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

// Yield ends a hold early because the pool has nothing better. Firm holds give
// way only where the policy says so.
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

// Deferred reports whether the end of a firm hold was put off beyond its window:
// the pod is expected back now.
func (l Lease) Deferred() bool { return l.State == Held && l.Firm && l.Hold > l.Window }

// Revoke takes the claim away: an operator's release, a hold outside the ranges,
// a request for another address. Force is the operator's own word that the
// holder does not matter; without it a holder that may live keeps the address
// out of use, though not for its key.
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

// Refuse records that a newcomer of the key was sent away because the holder
// may be alive. Only the first time counts, for each newcomer.
type Refuse struct {
	// Newcomer is its UID. All without one count as one: the next try of a pod comes
	// from another container, so nothing else tells it from the last.
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

// Supersede takes the key from a lease whose holder outlived the time that a
// newcomer was made to wait (busyTimeout, counted from the first Refuse). The
// newcomer gets another address; this one is free of the key, and its release
// promises nothing.
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

// SetWindow follows the annotation of the pod that has the lease (UID), as the
// agent sees it. A bound lease gets the window, as far as its configuration
// grants it. A hold becomes what its release would have made of it: a soft one
// firm, a firm one longer, shorter or soft. Only what was put off stays off.
type SetWindow struct {
	UID     string
	Window  time.Duration
	Owner   string // who makes the pod again
	Limited bool   // the range set may have no further firm hold: a soft one stays
}

func (e SetWindow) apply(l Lease, _ Instant) (Lease, error) {
	if l.State == None || l.Key().IsZero() {
		return l, ErrInvalid
	}
	if l.UID != e.UID {
		return l, ErrNotHolder
	}
	window, deferred := l.Granted(e.Window), l.Deferred()
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

// SetMAC records the hardware address of the holder's interface, as the holder
// says. The lease keeps it for the pod's next life.
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

// Defer puts off the end of a firm hold: at least Rest is left from now on.
// The pod is expected back.
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

// Rebase is for a hold of an earlier boot, in the first call of a new one. What has
// gone by is counted once, by the wall clock. From then on the hold counts by this
// boot's clock, and nobody who sets the other one ends it or keeps it. A hold that was
// released in the future begins again: the wall clock is wrong, or was.
type Rebase struct{}

func (Rebase) apply(l Lease, now Instant) (Lease, error) {
	if l.State != Held {
		return l, ErrInvalid
	}
	if now.BootID == "" || l.ReleasedAt.BootID == now.BootID {
		return l, ErrNotDue
	}
	gone := now.Since(l.ReleasedAt)
	released := Instant{Wall: now.Wall.Add(-gone), Boot: now.Boot - gone, BootID: now.BootID}
	if !now.isSet() && l.ReleasedAt.isSet() {
		released.Wall = l.ReleasedAt.Wall // for the next boot, which may know the time
	}
	l.ReleasedAt = released
	return l, nil
}

// Validate proves the invariant of the type.
func (l Lease) Validate() error {
	switch {
	case l.State == None:
		return errors.New("a lease without state is none and has no record")
	case l.State != Bound && l.State != Held:
		return fmt.Errorf("state %d is unknown", int(l.State))
	case !l.Address.IsValid():
		return errors.New("no address")
	case l.Pool.Network == "":
		return errors.New("no network")
	case len(l.ID) != 16:
		return fmt.Errorf("id %q is not 16 hex digits", l.ID)
	case l.State == Bound && (l.Firm || l.Hold != 0 || !l.ReleasedAt.IsZero()):
		return errors.New("bound, with the marks of a hold")
	case l.State == Held && l.ReleasedAt.IsZero():
		return errors.New("held since never")
	case l.State == Held && l.Firm && (l.Hold == 0 || l.Key().IsZero()):
		return errors.New("firmly held without a key or a time")
	case l.Window < 0 || l.MaxWindow < 0 || l.Soft < 0 || l.Hold < 0:
		return errors.New("negative time")
	}
	return nil
}
