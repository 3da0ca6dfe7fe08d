package transact

import (
	"errors"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Release releases the leases that an attachment had at the time of its DEL. Leases that were bound
// later stay: they belong to a container that was started again with the same id.
func (c *Call) Release(who lease.Attachment, at lease.Instant, reason string) error {
	leases, err := c.Tx.ByHolder(who.ContainerID, who.IfName)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.BoundAt.IsAfter(at) {
			continue
		}
		if err := c.ReleaseLease(l, lease.Unknown, at, reason); err != nil {
			return err
		}
	}
	return nil
}

// ReleaseLease releases a bound lease at a time. last is the state of its holder, or Unknown if the
// caller has not determined it.
func (c *Call) ReleaseLease(l lease.Lease, last lease.Liveness, at lease.Instant, reason string) error {
	limited := c.atLimit(l)
	e := lease.Release{Holder: l.Holder, Limited: limited, LastHolder: last}
	if _, err := c.moveAt(l, e, store.EventReleased, reason, at); err != nil {
		return err
	}
	if limited {
		return c.Log(l, store.EventLimited, "maxHeldShare is reached: the hold is a short one")
	}
	return nil
}

// atLimit reports whether the release of a lease with a window starts only a soft hold, because its
// range set has as many firm holds as maxHeldShare allows.
func (c *Call) atLimit(l lease.Lease) bool {
	return l.Window > 0 && c.IsFull(l)
}

// IsFull reports whether the lease's range set has as many firm holds as maxHeldShare allowed when
// the lease was bound.
func (c *Call) IsFull(l lease.Lease) bool {
	return l.HeldLimit != 0 && int(c.Tx.Counts(l.Pool, l.Set).Firm) >= max(l.HeldLimit, 0)
}

// Orphan releases a bound lease whose holder died without a DEL. last is the state of the holder,
// which must be Dead. It returns the new lease.
func (c *Call) Orphan(l lease.Lease, last lease.Liveness, reason string) (lease.Lease, error) {
	limited := c.atLimit(l)
	next, err := c.Move(l, lease.Orphan{LastHolder: last, Limited: limited}, store.EventOrphaned, reason)
	if err == nil && limited {
		err = c.Log(l, store.EventLimited, "maxHeldShare is reached: the hold is a short one")
	}
	return next, err
}

// NewBoot releases the leases that were bound in earlier boots, because their holders are dead and
// a DEL may never come, and moves the holds of earlier boots to this boot's clock. The first calls
// of a boot do that. A pool whose host-local lock is busy is left to a later call.
func (c *Call) NewBoot() error {
	if c.Now.BootID == "" || c.Tx.Boot() == c.Now.BootID {
		return nil
	}
	all := true
	for _, p := range c.Tx.Pools() {
		err := c.newBootIn(p)
		if err != nil && !errors.Is(err, store.ErrBusy) {
			return err
		}
		all = all && err == nil
	}
	if !all {
		return nil
	}
	return c.Tx.SetBoot(c.Now.BootID)
}

func (c *Call) newBootIn(p lease.Pool) error {
	for _, l := range c.Tx.InPool(p) {
		var err error
		switch {
		case l.State == lease.Held:
			if next, e := lease.Apply(l, lease.Rebase{}, c.Now); e == nil {
				err = c.Put(l, next)
			}
		case c.QuickState(l) == lease.Dead:
			_, err = c.Orphan(l, lease.Dead, "the node has booted since")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Expire ends those of the leases that are holds whose time is over, if no interface of their last
// holders has the addresses any more.
func (c *Call) Expire(leases []lease.Lease) error {
	for _, l := range leases {
		if !l.Lapsed(c.Now) {
			continue
		}
		last := c.Last(l)
		if last != lease.Dead {
			continue
		}
		if _, err := c.Move(l, lease.Expire{LastHolder: last}, store.EventExpired,
			"it was held for "+lease.FormatWindow(l.Hold)); err != nil {
			return err
		}
	}
	return nil
}
