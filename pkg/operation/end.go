package operation

import (
	"cmp"
	"fmt"
	"math"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// End ends the use of a bound lease, or a hold, at a time, by one of the events of package lease
// that do: it writes what follows, and adds a journal entry. If a limit of holds applies to a bound
// lease, only a cool-down follows. End returns the new lease.
func (c *Call) End(l lease.Lease, e lease.Event, at lease.Instant, reason string) (lease.Lease, error) {
	limit, ev := "", store.EventRevoked
	switch end := e.(type) {
	case lease.Release:
		if ev = store.EventReleased; l.Window > 0 {
			limit = c.HoldLimit(l)
		}
		f, err := c.read(l.Place(), l)
		switch {
		case end.Collected:
			ev = store.EventOrphaned
		case err == nil && f.namesHolder(l) && f.isEndedBy(at):
			c.files.changed[l.Place()] = true // of whichever life it is: the DEL ends all
		}
		end.Limited = limit != ""
		e = end
	case lease.Expire:
		ev = store.EventExpired
	case lease.Yield:
		ev = store.EventYielded
	case lease.Supersede:
		ev = store.EventSuperseded
	}
	next, err := lease.Apply(l, e, at)
	if err == nil {
		err = c.Record(l, next, ev, at, reason)
	}
	if err != nil {
		return l, err
	}
	return next, c.LogLimit(l, limit)
}

// HoldLimit returns the limit because of which no hold may be made of the lease, "" if there
// is none: maxHeldShare of its range set as it was when the lease was bound, or a limit of its
// namespace. No limit applies to leases of an earlier boot: a boot turns all leases into holds, of
// which nobody has too many.
func (c *Call) HoldLimit(l lease.Lease) string {
	if l.OfEarlierBoot(c.Now.BootID) {
		return ""
	}
	if l.HeldLimit != 0 && int(c.Tx.Counts(l.Pool, l.Set).Held) >= max(l.HeldLimit, 0) {
		return "maxHeldShare is reached"
	}
	of := c.Tx.Limits().Of(l.Namespace)
	if of.MaxHeld == math.MaxInt && of.MaxHeldShare == 1 {
		return ""
	}
	all, inSet := c.Tx.HoldsOf(l)
	if all >= of.MaxHeld {
		return fmt.Sprintf("namespace %s has %d addresses held, and its limit is %d", l.Namespace, all, of.MaxHeld)
	}
	size, known := c.Tx.SetSize(l.Pool, l.Set)
	if share := of.MaxHeldShare; known && share < 1 && float64(inSet+1) > share*float64(size) {
		return fmt.Sprintf("namespace %s has %d of %d addresses held, and its limit is a share of %v", l.Namespace,
			inSet, size, share)
	}
	return ""
}

// LogLimit records that a lease has only a cool-down because of a limit that HoldLimit returned. If
// that is "", it does nothing.
func (c *Call) LogLimit(l lease.Lease, limit string) error {
	if limit == "" {
		return nil
	}
	return c.Log(l, store.EventLimited, limit+": the hold is a short one")
}

// NewBoot releases the leases of a pool that were bound in earlier boots, because their holders are
// dead and a DEL may never come, and moves the holds of earlier boots to this boot's clock. The
// first call of a boot that has host-local's lock of the pool does that.
func (c *Call) NewBoot(p lease.Pool) error {
	if c.Now.BootID == "" || c.Tx.PoolBoot(p) == c.Now.BootID {
		return nil
	}
	isOld := func(l lease.Lease) bool {
		return l.State == lease.Held && l.ReleasedAt.BootID != c.Now.BootID ||
			l.State == lease.Bound && c.Evidence.QuickState(l) == lease.Dead
	}
	for more := true; more; {
		var old []lease.Lease // not all: the next attempt would read them again
		for l, err := range c.Tx.In(p) {
			if err == nil && isOld(l) {
				old = append(old, l)
			}
			if len(old) == bootBatch {
				break
			}
		}
		more = len(old) == bootBatch
		for _, l := range old {
			if err := cmp.Or(c.beginBoot(l), c.Step()); err != nil {
				return err
			}
		}
	}
	return c.Tx.SetPoolBoot(p, c.Now.BootID)
}

// bootBatch is the number of leases that NewBoot reads at a time.
const bootBatch = 1000

// beginBoot moves a hold to the clock of this boot, or releases a lease of an earlier one.
func (c *Call) beginBoot(l lease.Lease) error {
	if l.State == lease.Held {
		_, _, err := c.Change(l, lease.Rebase{})
		return err
	}
	return c.endDead(l, "the node has booted since")
}

// Collect ends those of the leases that nobody needs any more: holds whose time is over, if no
// interface of their last holders has the addresses, and bound ones whose holders are proven dead.
func (c *Call) Collect(leases []lease.Lease) error {
	for _, l := range leases {
		ended, err := c.collect(l)
		if err == nil && ended {
			err = c.Step()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// collect is Collect for one lease, without a step. It reports whether it has ended the lease.
func (c *Call) collect(l lease.Lease) (ended bool, err error) {
	switch {
	case l.State == lease.Bound && c.Evidence.Prove(l) == lease.Dead:
		return true, c.endDead(l, "its sandbox is gone")
	case l.Lapsed(c.Now) && c.Evidence.Last(l) == lease.Dead:
		_, err = c.End(l, lease.Expire{LastHolder: lease.Dead}, c.Now, "it was held for "+l.Hold.String())
		return true, err
	}
	return false, nil
}

// endDead releases a lease whose holder is proven dead.
func (c *Call) endDead(l lease.Lease, reason string) error {
	e := lease.Release{Holder: l.Holder, Collected: true, LastHolder: lease.Dead}
	_, err := c.End(l, e, c.Now, reason)
	return err
}

// CollectAt ends the lease of an address if nobody needs it any more: host-local has served its
// DEL, or for a reason of Collect. It returns what is left of the lease (Present). It takes no
// step, so that a call may change several leases or none.
func (c *Call) CollectAt(at lease.Place) (lease.Lease, error) {
	l, err := c.Tx.Get(at.Pool, at.Address)
	if err == nil && l.State != lease.None {
		err = c.CompareFiles([]lease.Lease{l})
	}
	if err == nil {
		l, err = c.Tx.Get(at.Pool, at.Address)
	}
	if err == nil {
		_, err = c.collect(l)
	}
	if err != nil {
		return l, err
	}
	l, _, err = c.Present(at)
	return l, err
}

// Present returns the lease of an address. It compares an address without a lease with its file
// first: an address that is in use then has a lease, of an unknown owner if the file cannot be read
// or names nobody. A file of a container that is dead goes; wasDead reports whether there was one.
func (c *Call) Present(at lease.Place) (l lease.Lease, wasDead bool, err error) {
	if l, err = c.Tx.Get(at.Pool, at.Address); err != nil || l.State != lease.None {
		return l, false, err
	}
	_, f, err := c.resolve(at, l, nil)
	if err == nil {
		l, err = c.Tx.Get(at.Pool, at.Address)
	}
	return l, f.says == saysOther, err
}
