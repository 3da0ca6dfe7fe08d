package lease

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrTaken is returned if the address belongs to another key, is in another pod's cool-down, or
	// belongs to an attachment without a window.
	ErrTaken = errors.New("the address belongs to another lease")
	// ErrHolderAlive is returned if an event requires that the (last) holder is dead, but there is
	// no proof of its death.
	ErrHolderAlive = errors.New("the last holder of the address may still be alive")
	// ErrNotHolder is returned if an event names a container that does not hold the lease. Callers
	// ignore it for a DEL, which runtimes repeat: a late DEL changes nothing and succeeds.
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
		name := strings.TrimPrefix(fmt.Sprintf("%T", e), "lease.")
		return l, fmt.Errorf("%s of %s lease %s: %w", name, l.State, l.Address, err)
	}
	return next, nil
}

// Bind is an ADD: it gives the address to Holder. If the holder has the address already, nothing
// changes, except that a lease whose pod was not known becomes the pod's. A held lease is given
// only to a pod with its key (a claim), a bound one only to a pod with its key, and only if its
// former holder is proven dead (a take-over).
type Bind struct {
	// Lease is the new lease, without State and times. A claimed lease keeps its ID, its hardware
	// address, its owner and the UID of the namespace.
	Lease

	LastHolder Liveness // of the holder, or last holder, that the lease has before the event
}

func (e Bind) apply(l Lease, now Instant) (Lease, error) {
	switch {
	case l.State == None:
		return e.bound(Lease{ID: e.ID}, now), nil
	case l.State != Bound && l.State != Held:
		return l, ErrInvalid
	case l.State == Bound && l.Holder.Is(e.Holder) && l.Pool == e.Pool:
		if !l.HasPod() && e.HasPod() {
			return e.bound(l, now), nil
		}
		l.Holder = e.Holder // the namespace may be another one; nothing else changes
		return l, nil
	case !e.isPromised(l, now):
		return l, ErrTaken
	// A network namespace cannot contain two interfaces of the same name. Therefore a container in
	// the same namespace as the holder has replaced it.
	case e.LastHolder != Dead && !l.Holder.Netns.Same(e.Holder.Netns):
		return l, ErrHolderAlive
	}
	return e.bound(l, now), nil
}

// isPromised reports whether the pod may have the address of a lease once the holder is dead: it
// has the key, and the lease is bound with a window, held, or in cool-down for this very pod.
func (e Bind) isPromised(l Lease, now Instant) bool {
	switch {
	case l.Key() != e.Key(), e.Key().IsZero():
		return false
	case l.State == Bound:
		return l.Window > 0
	}
	return !l.Lapsed(now) && (l.IsHold || e.UID != "" && e.UID == l.UID)
}

func (e Bind) bound(l Lease, now Instant) Lease {
	next := e.Lease
	next.State, next.BoundAt = Bound, now
	next.ID, next.MAC, next.NamespaceUID, next.Owner, next.Extra = l.ID, l.MAC, l.NamespaceUID, l.Owner, l.Extra
	return next
}

// Release is a DEL of the holder, a GC whose list does not contain the holder, or, if Collected,
// the death of the holder without a DEL, which LastHolder must prove. The window of the lease
// starts (docs/design.md, "Release and collection"). A lease of an earlier boot ends as a boot ends
// it, whichever of these comes first.
type Release struct {
	Holder    Holder // that of the lease, even if its container is unknown
	Collected bool
	Limited   bool // the range set already has as many holds as it may: a cool-down follows, except at a boot
	// LastHolder matters also for a lease without a key. Its address is free at once, as with
	// host-local, unless the holder is Alive.
	LastHolder Liveness
}

func (e Release) apply(l Lease, now Instant) (Lease, error) {
	switch {
	case l.State != Bound || !l.Holder.Is(e.Holder) && (l.Holder.ContainerID != "" || l.Holder != e.Holder):
		return l, ErrNotHolder
	case e.Collected && e.LastHolder != Dead:
		return l, ErrHolderAlive
	}
	next := released(l, e.Limited && !l.OfEarlierBoot(now.BootID), e.LastHolder, now)
	if next.State == Held && !next.IsHold && l.OfEarlierBoot(now.BootID) {
		next.Hold = max(next.Hold, Window(BootHold))
	}
	return next, nil
}

// BootHold is the least length of the cool-downs that a boot begins, because all pods of the node
// start again at once, and many of them wait for others or for an API server.
const BootHold = 15 * time.Minute

// IsBootHold reports whether a lease is a cool-down of a pod that had the address before the boot
// bootID, so that the hold is not needed once the pod is gone. It reports false for static pods,
// whose UIDs have no hyphen: one that has no mirror pod only seems to be gone.
func (l Lease) IsBootHold(bootID string) bool {
	return l.State == Held && !l.IsHold && l.OfEarlierBoot(bootID) && strings.Contains(l.UID, "-")
}

// OfEarlierBoot reports whether the lease was bound before the boot bootID, which has ended its
// holder. bootID is "" if the id of the present boot cannot be read; then it reports false.
func (l Lease) OfEarlierBoot(bootID string) bool {
	return bootID != "" && l.Holder.BootID != "" && l.Holder.BootID != bootID
}

func released(l Lease, limited bool, last Liveness, now Instant) Lease {
	switch {
	case !l.Key().IsZero() && l.Window > 0 && !limited:
		return becomeHeld(l, true, l.Window, now)
	case l.HasPod() && l.CoolDown > 0, last == Alive:
		return becomeHeld(l, false, Window(l.CoolDown), now)
	}
	return Lease{}
}

func becomeHeld(l Lease, isHold bool, hold Window, now Instant) Lease {
	l.State, l.IsHold, l.Hold, l.ReleasedAt, l.Leaving = Held, isHold, hold, now, false
	l.RefusedAt, l.RefusedFor = Instant{}, ""
	return l
}

// Expire ends a Held lease whose time is over.
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

// Yield ends a cool-down early because the pool is exhausted, and a hold if the policy allows it.
type Yield struct {
	LastHolder Liveness
	Holds      bool // the policy onExhaustion allows it for holds, too
}

func (e Yield) apply(l Lease, _ Instant) (Lease, error) {
	if l.State != Held {
		return l, ErrInvalid
	}
	if l.IsHold && (!e.Holds || l.Deferred()) {
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

// Deferred reports whether the lease is a hold that Defer made longer than the window.
func (l Lease) Deferred() bool { return l.IsHold && l.Hold > l.Window }

// Revoke takes the address from its pod, because an operator or spec.release of the IPReservation
// released it, because the ranges no longer contain it, or because the pod requests another
// address.
//
// If the last holder of a Held lease may be alive, the lease remains as a cool-down without a key
// until the last holder is dead: nobody gets the address, but the pod has no claim to it any more.
// A bound lease whose holder may be alive is revoked only with KeepBound, and loses only its key.
type Revoke struct {
	LastHolder Liveness
	KeepBound  bool
	Force      bool // remove the lease even if the holder may be alive, as the operator asked
}

func (e Revoke) apply(l Lease, now Instant) (Lease, error) {
	switch {
	case l.State == None:
		return l, ErrInvalid
	case e.Force, e.LastHolder == Dead:
		return Lease{}, nil
	case l.State == Bound && !e.KeepBound:
		return l, ErrHolderAlive
	}
	return superseded(l, now), nil
}

// Refuse records when an ADD of a pod with the key was first rejected because the holder may be
// alive. Supersede counts its timeout from that time. A hold does not end before that: the pod has
// come back in time.
type Refuse struct {
	// Newcomer is the UID of the pod that was rejected. Pods of runtimes that pass no UID count as
	// one pod, because each attempt has another container id.
	Newcomer string
	Timeout  time.Duration // of Supersede
}

func (e Refuse) apply(l Lease, now Instant) (Lease, error) {
	if l.State == None {
		return l, ErrInvalid
	}
	if l.RefusedFor != e.Newcomer || l.RefusedAt.IsZero() {
		l.RefusedAt, l.RefusedFor = now, e.Newcomer
		l = l.lasting(e.Timeout, now)
	}
	return l, nil
}

// lasting returns the lease with at least rest left of its hold.
func (l Lease) lasting(rest time.Duration, now Instant) Lease {
	if l.State == Held && l.Remaining(now) < Window(rest) {
		l.Hold = Window(now.Since(l.ReleasedAt) + rest)
	}
	return l
}

// Supersede removes the key from a lease whose holder is still alive at Timeout after the first
// Refuse. The caller then gives the pod another address. The release of the superseded lease starts
// no hold.
type Supersede struct {
	Newcomer string // as in Refuse
	Timeout  time.Duration
}

func (e Supersede) apply(l Lease, now Instant) (Lease, error) {
	if l.State == None {
		return l, ErrInvalid
	}
	// Since returns 0 if no ADD was rejected yet.
	if e.Timeout > 0 && (l.RefusedFor != e.Newcomer || now.Since(l.RefusedAt) < e.Timeout) {
		return l, ErrNotDue
	}
	return superseded(l, now), nil
}

func superseded(l Lease, now Instant) Lease {
	if l.State == Held {
		l.Hold, l.ReleasedAt = min(l.Remaining(now), Window(max(l.CoolDown, time.Second))), now
	}
	l.Superseded, l.IsHold, l.Window, l.Leaving = true, false, 0, false
	l.RefusedAt, l.RefusedFor = Instant{}, ""
	return l
}

// Reserve holds an address for a pod, or for the pods of a reservation name, before the pod exists.
// A free address, and one in a cool-down of another pod, becomes a hold without a holder. A lease
// that is held for the same key becomes a hold, and lasts for at least Hold from now on; one that
// no pod has had and that has the same owner lasts for exactly that.
type Reserve struct {
	Lease Lease // the key (Pool, Namespace, Name, ReserveAs, Holder.IfName), Address and Set of the new hold
	ID    string
	Hold  Window

	LastHolder Liveness // of a cool-down of another pod
}

func (e Reserve) apply(l Lease, now Instant) (Lease, error) {
	switch {
	case l.State == Bound, l.IsHold && l.Key() != e.Lease.Key():
		return l, ErrTaken
	case l.State == Held && l.Key() == e.Lease.Key():
		if l.IsUnused() && l.Owner == e.Lease.Owner && l.Remaining(now) != e.Hold || l.Remaining(now) < e.Hold {
			l.Hold, l.ReleasedAt = e.Hold, now
		}
		l.IsHold = true
		return l, nil
	case l.State == Held && e.LastHolder != Dead:
		return l, ErrHolderAlive
	}
	next := e.Lease
	next.ID, next.State, next.BoundAt = e.ID, Bound, now
	return becomeHeld(next, true, e.Hold, now), nil
}

// SetWindow applies the annotation of the pod that has the lease (UID). The agent reads it from the
// API server. A bound lease gets the window, as far as its configuration allows. A Held lease
// changes to what its release would have started with this window: a cool-down may become a hold, a
// hold longer, shorter or a cool-down. A deferred end stays deferred.
type SetWindow struct {
	UID    string
	Window Window
	Owner  string // the controller that recreates the pod
	// ReserveAs is the pod's reservation name. The lease gets it, or loses the one that it has.
	ReserveAs string
	// NamespaceUID is the UID of the pod's namespace; "" if it could not be read: then that of the
	// lease stays.
	NamespaceUID string
	Limited      bool // the range set already has as many holds as it may: a cool-down stays one
}

func (e SetWindow) apply(l Lease, _ Instant) (Lease, error) {
	if l.State == None || l.Key().IsZero() {
		return l, ErrInvalid
	}
	if l.UID != e.UID {
		return l, ErrNotHolder
	}
	window, deferred := l.granted(e.Window), l.Deferred()
	l.Owner, l.ReserveAs = e.Owner, e.ReserveAs
	l.Leaving = l.Leaving && e.ReserveAs != ""
	if e.NamespaceUID != "" {
		l.NamespaceUID = e.NamespaceUID
	}
	if window == l.Window {
		return l, nil
	}
	l.Window = window
	switch {
	case l.State == Bound:
	case window == 0:
		l.IsHold, l.Hold = false, Window(l.CoolDown)
	case !l.IsHold && e.Limited:
	case deferred:
		l.Hold = max(window, l.Hold)
	default:
		l.IsHold, l.Hold = true, window
	}
	return l, nil
}

// Leave records whether the pod of a named lease (UID) is being deleted. A static pod stays if its
// mirror pod was deleted and made again.
type Leave struct {
	UID   string
	Stays bool
}

func (e Leave) apply(l Lease, _ Instant) (Lease, error) {
	if l.State != Bound || l.Key().ReserveAs == "" {
		return l, ErrInvalid
	}
	if l.UID != e.UID {
		return l, ErrNotHolder
	}
	l.Leaving = !e.Stays
	return l, nil
}

// Defer puts off the end of a hold, so that at least Rest is left from now on. The agent
// applies it while a pod with the key is assigned to the node and waits for its sandbox.
type Defer struct{ Rest time.Duration }

func (e Defer) apply(l Lease, now Instant) (Lease, error) {
	if !l.IsHold {
		return l, ErrInvalid
	}
	return l.lasting(e.Rest, now), nil
}

// Rebase moves a hold of an earlier boot to the clock of this boot. The first call after a boot
// applies it: the time since the release is computed once, by the wall clock, and later changes of
// the wall clock have no effect. If the release seems to be in the future, the hold starts again,
// because the wall clock is wrong now or was wrong at the release.
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
	if !now.IsSet() && l.ReleasedAt.IsSet() {
		released.Wall = l.ReleasedAt.Wall // the next boot may know the time
	}
	l.ReleasedAt = released
	return l, nil
}

// Validate returns an error if the lease violates an invariant of Lease. The store calls it before
// it writes a record and after it has read one. There is one case for each invariant.
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
	case l.State == Bound && (l.IsHold || l.Hold != 0 || !l.ReleasedAt.IsZero()):
		return errors.New("bound, with fields of a hold")
	case l.State == Held && l.ReleasedAt.IsZero():
		return errors.New("held without the time of its release")
	case l.State == Held && l.IsHold && (l.Hold == 0 || l.Key().IsZero()):
		return errors.New("held without a key or a length")
	case l.ReserveAs != "" && (!IsReserveAs(l.ReserveAs) || l.Namespace == "" || l.Name == ""):
		return fmt.Errorf("reservation name %q without a pod, or not a DNS label", l.ReserveAs)
	case l.Leaving && (l.State != Bound || l.Key().ReserveAs == ""):
		return errors.New("leaving, and not bound and named")
	case l.Window < 0 || l.MaxWindow < 0 || l.CoolDown < 0 || l.Hold < 0:
		return errors.New("negative time")
	}
	return nil
}
