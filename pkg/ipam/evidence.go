package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// evidence is what one look at the host has shown of holders. It looks once for
// each, so that one decision never rests on two answers.
type evidence struct {
	host  Host
	boot  string
	bound iter.Seq[lease.Lease] // every bound lease
	// twice: processes are asked twice, for one that moves on can hide from one
	// look, and mounts as well. For whoever has the time.
	twice bool

	plugged map[lease.Netns]plugged // what interfaces have
	looked  map[lease.Holder]lease.Liveness
	proven  map[lease.Holder]lease.Liveness
	doubts  map[lease.Holder]error   // why it is proven neither that they live nor that they do not
	procs   *sandbox.NetnsSet        // asked for when they are needed first
	inNetns map[uint64][]lease.Lease // bound, by the number of the namespace
}

// boundIn are the bound leases of a list.
func boundIn(list []lease.Lease) iter.Seq[lease.Lease] {
	return func(yield func(lease.Lease) bool) {
		for _, l := range list {
			if l.State == lease.Bound && !yield(l) {
				return
			}
		}
	}
}

// boundBy are the bound leases of a transaction that can be read.
func boundBy(tx *store.Tx) iter.Seq[lease.Lease] {
	return func(yield func(lease.Lease) bool) {
		tx.All(func(l lease.Lease, err error) bool { return err != nil || l.State != lease.Bound || yield(l) })
	}
}

func newEvidence(host Host, boot string, bound iter.Seq[lease.Lease]) evidence {
	return evidence{
		host: host, boot: boot, bound: bound,
		plugged: map[lease.Netns]plugged{}, looked: map[lease.Holder]lease.Liveness{},
		proven: map[lease.Holder]lease.Liveness{},
		doubts: map[lease.Holder]error{},
	}
}

// look is the quick look at a holder.
func (e *evidence) look(l lease.Lease) lease.Liveness {
	life, ok := e.looked[l.Holder]
	if !ok {
		life = e.host.QuickState(l.Holder, e.boot)
		e.looked[l.Holder] = life
	}
	return life
}

// prove looks harder: where the path of the namespace leads to it no longer,
// all processes are asked. For taking over and collecting only.
func (e *evidence) prove(l lease.Lease) lease.Liveness {
	life, ok := e.proven[l.Holder]
	if !ok {
		life, e.doubts[l.Holder] = e.proveAnew(l)
		e.proven[l.Holder] = life
	}
	return life
}

// doubt returns why prove could not tell whether a holder lives; nil where it could.
func (e *evidence) doubt(l lease.Lease) error {
	if e.prove(l) != lease.Unknown {
		return nil
	}
	err := cmp.Or(e.doubts[l.Holder], errors.New("it could not be looked at"))
	if e.boot == "" {
		err = fmt.Errorf("%w, and the boot id cannot be read", err)
	}
	return err
}

func (e *evidence) proveAnew(l lease.Lease) (lease.Liveness, error) {
	switch life := e.look(l); {
	case life == lease.Alive && e.isMadeAnew(l):
		return lease.Dead, nil
	case life != lease.Unknown:
		return life, nil
	}
	gone, err := e.host.PathGone(l.Holder)
	if err != nil {
		return lease.Unknown, err
	}
	if !gone {
		return lease.Alive, nil // it is there by now
	}
	life := e.processes().Liveness(l.Holder.Netns)
	if life == lease.Alive && e.isReissued(l) {
		return lease.Dead, nil
	}
	return life, e.processes().Incomplete()
}

// plugged are the addresses in a network namespace, or why they cannot be told.
type plugged struct {
	addrs []netip.Addr
	err   error
}

// lastHas reports whether the last holder of a held lease still has the address: on an
// interface of its network namespace, which may live on for long after the interface
// was unplugged. Unknown, and why, where it cannot be looked at. A holder of whom no
// namespace is known has nothing to look at: its DEL is all there is.
func (e *evidence) lastHas(l lease.Lease) (lease.Liveness, error) {
	switch life := e.look(l); {
	case life == lease.Dead, l.Holder.Netns.Ino == 0:
		return lease.Dead, nil
	case life == lease.Unknown:
		switch gone, err := e.host.PathGone(l.Holder); {
		case err != nil:
			return lease.Unknown, err
		case gone:
			return lease.Dead, nil
		}
	}
	return e.hasAddress(l)
}

// hasAddress reports whether an interface in the namespace at the holder's path has the address.
// Unknown, and why, where it cannot be looked at.
func (e *evidence) hasAddress(l lease.Lease) (lease.Liveness, error) {
	in, known := e.plugged[l.Holder.Netns]
	if !known {
		in.addrs, in.err = e.host.AddressesIn(l.Holder.Netns)
		e.plugged[l.Holder.Netns] = in
	}
	switch {
	case errors.Is(in.err, sandbox.ErrNetnsGone):
		return lease.Dead, nil
	case in.err != nil:
		return lease.Unknown, in.err
	case slices.Contains(in.addrs, l.Address):
		return lease.Alive, nil
	}
	return lease.Dead, nil
}

// last is lastHas for an event of the lease.
func (e *evidence) last(l lease.Lease) lease.Liveness {
	life, _ := e.lastHas(l)
	return life
}

// lifeOf is what an event that ends a lease has to know: a proof for a bound one.
func (e *evidence) lifeOf(l lease.Lease) lease.Liveness {
	if l.State == lease.Held {
		return e.last(l)
	}
	return e.prove(l)
}

func (e *evidence) processes() sandbox.NetnsSet {
	if e.procs == nil {
		p := e.host.ProcessNetns()
		if e.twice {
			p = p.Union(e.host.ProcessNetns()).Union(e.host.MountedNetns())
		}
		e.procs = &p
	}
	return *e.procs
}

// isMadeAnew reports whether the namespace at the holder's path, which has the holder's number, is
// another one, as after `ip netns del x; ip netns add x`: an interface there has the address of a
// later container (isReissued), and none has this one. Where no address is on an interface, as
// before the plugin that called has made one, nothing is proven.
func (e *evidence) isMadeAnew(l lease.Lease) bool {
	for _, o := range e.successors(l) {
		theirs, err := e.hasAddress(o)
		if err != nil || theirs != lease.Alive {
			continue
		}
		has, err := e.hasAddress(l)
		return err == nil && has == lease.Dead
	}
	return false
}

// isReissued reports whether the number of the namespace was given again. The kernel gives the
// number of a namespace that has ended to a new one. If the lease of another container was bound
// later, to the same interface of a namespace of this number, then it is that container's by now: a
// namespace has an interface once. (Leases of two networks of one pod may know its namespace by two
// paths; they name two interfaces and one container.)
func (e *evidence) isReissued(l lease.Lease) bool { return len(e.successors(l)) > 0 }

// successors returns the leases of other containers that were bound later, to the same interface of
// a namespace of the same number.
func (e *evidence) successors(l lease.Lease) (out []lease.Lease) {
	if e.inNetns == nil {
		e.inNetns = map[uint64][]lease.Lease{}
		for o := range e.bound {
			e.inNetns[o.Holder.Netns.Ino] = append(e.inNetns[o.Holder.Netns.Ino], o)
		}
	}
	for _, o := range e.inNetns[l.Holder.Netns.Ino] {
		if o.Holder.ContainerID != l.Holder.ContainerID && o.Holder.IfName == l.Holder.IfName &&
			o.BoundAt.IsAfter(l.BoundAt) {
			out = append(out, o)
		}
	}
	return out
}

// atLimit reports whether the lease's range set has as many firm holds as the
// configuration allowed when the lease was bound.
func (c *call) atLimit(l lease.Lease) bool {
	return l.Window > 0 && c.isFull(l)
}

// isFull reports whether its range set may have no further firm hold.
func (c *call) isFull(l lease.Lease) bool {
	return l.HeldLimit != 0 && int(c.tx.Counts(l.Pool, l.Set).Firm) >= max(l.HeldLimit, 0)
}

// orphan turns the lease of a holder that is proven dead into a release.
func (c *call) orphan(l lease.Lease, last lease.Liveness, reason string) (lease.Lease, error) {
	limited := c.atLimit(l)
	next, err := c.move(l, lease.Orphan{LastHolder: last, Limited: limited}, store.EventOrphaned, reason)
	if err == nil && limited {
		err = c.log(l, store.EventLimited, "maxHeldShare is reached: the hold is a short one")
	}
	return next, err
}

// newBoot turns every lease of an earlier boot into a release, once: their
// holders are dead, and for some of them no DEL will come. A network whose files
// are locked is left to its own next call.
func (c *call) newBoot() error {
	if c.now.BootID == "" || c.tx.Boot() == c.now.BootID {
		return nil
	}
	all := true
	for _, p := range c.tx.Pools() {
		err := c.newBootIn(p)
		if err != nil && !errors.Is(err, store.ErrBusy) {
			return err
		}
		all = all && err == nil
	}
	if !all {
		return nil
	}
	return c.tx.SetBoot(c.now.BootID)
}

func (c *call) newBootIn(p lease.Pool) error {
	for _, l := range c.tx.InPool(p) {
		var err error
		switch {
		case l.State == lease.Held:
			if next, e := lease.Apply(l, lease.Rebase{}, c.now); e == nil {
				err = c.put(l, next)
			}
		case c.look(l) == lease.Dead:
			_, err = c.orphan(l, lease.Dead, "the node has booted since")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recordNamespaces records where the plugin runs, which is where the runtime does:
// the agent proves by it that it sees the same (Survey).
func (c *call) recordNamespaces() error {
	if word := c.host.NamespaceIDs(c.now.BootID); word != "" && word != c.tx.NamespaceIDs() {
		return c.tx.SetNamespaceIDs(word)
	}
	return nil
}

// proveView returns ErrNoHostView where it is not proven that this process sees what
// the plugin sees: there a living sandbox may look dead.
func (c *call) proveView() error {
	if err := c.host.ProveView(c.tx.NamespaceIDs(), c.now.BootID, c.bound); err != nil {
		return fmt.Errorf("%w: %w", ErrNoHostView, err)
	}
	return nil
}

// mayLearn returns ErrNoHostView where what the host shows may not become leases.
func (c *call) mayLearn() error {
	if c.plugin {
		return nil
	}
	return c.proveView()
}

// sweepBatch bounds what one ADD tidies up. It adds at most a few holds itself.
const sweepBatch = 16

// sweep ends the holds of a pool whose time is over.
func (c *call) sweep(leases []lease.Lease) error {
	for _, l := range leases {
		if !l.Lapsed(c.now) {
			continue
		}
		last := c.last(l)
		if last != lease.Dead {
			continue
		}
		if _, err := c.move(l, lease.Expire{LastHolder: last}, store.EventExpired,
			"it was held for "+lease.FormatWindow(l.Hold)); err != nil {
			return err
		}
	}
	return nil
}
