package transact

import (
	"errors"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Release releases the leases that the attachment had at a time. Later ones are of a container that
// was started again with the same id.
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

// ReleaseLease releases a bound lease. last is the state of its holder as far as it is known.
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

// atLimit reports whether the lease would be held, but its range set has as many firm holds as the
// configuration allowed when the lease was bound.
func (c *Call) atLimit(l lease.Lease) bool {
	return l.Window > 0 && c.IsFull(l)
}

// IsFull reports whether the lease's range set may have no further firm hold.
func (c *Call) IsFull(l lease.Lease) bool {
	return l.HeldLimit != 0 && int(c.Tx.Counts(l.Pool, l.Set).Firm) >= max(l.HeldLimit, 0)
}

// Orphan releases the lease of a holder that is proven dead.
func (c *Call) Orphan(l lease.Lease, last lease.Liveness, reason string) (lease.Lease, error) {
	limited := c.atLimit(l)
	next, err := c.Move(l, lease.Orphan{LastHolder: last, Limited: limited}, store.EventOrphaned, reason)
	if err == nil && limited {
		err = c.Log(l, store.EventLimited, "maxHeldShare is reached: the hold is a short one")
	}
	return next, err
}

// NewBoot releases every lease of an earlier boot, once in a boot: their holders are dead, and
// there may be no DEL. A network whose files are locked is left to a later call.
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

// Expire ends those of the leases that are holds and over, if their last holders do not have the
// addresses any more.
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
