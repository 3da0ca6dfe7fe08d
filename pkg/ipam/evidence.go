package ipam

import (
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// look is the quick look at a holder. Like prove it looks once in a call, so
// that one decision never rests on two answers.
func (c *call) look(l lease.Lease) lease.Life {
	life, ok := c.looked[l.Holder]
	if !ok {
		life = c.host.Look(l.Holder, c.now.BootID)
		c.looked[l.Holder] = life
	}
	return life
}

// prove looks harder: where the path of the namespace leads to it no longer,
// all processes are asked. For taking over and collecting only.
func (c *call) prove(l lease.Lease) lease.Life {
	life, ok := c.proven[l.Holder]
	if !ok {
		life = c.proveAnew(l)
		c.proven[l.Holder] = life
	}
	return life
}

func (c *call) proveAnew(l lease.Lease) lease.Life {
	if life := c.look(l); life != lease.Unknown || !c.host.Gone(l.Holder) {
		return life
	}
	life := c.processes().Have(l.Holder.Netns)
	if life == lease.Alive && c.isReissued(l) {
		return lease.Dead
	}
	return life
}

func (c *call) processes() sandbox.Processes {
	if c.procs == nil {
		p := c.host.Processes()
		c.procs = &p
	}
	return *c.procs
}

// isReissued: the kernel gives the number of a namespace that has ended to a
// new one. If the lease of another container, bound later, lives in a
// namespace of this number under its own path, then the processes seen there
// are that container's, and the namespace of this lease has ended.
func (c *call) isReissued(l lease.Lease) bool {
	if c.reissued == nil {
		c.reissued = map[uint64]bool{}
		c.tx.All(func(o lease.Lease, err error) bool {
			if err == nil && o.State == lease.Bound && c.look(o) == lease.Alive {
				c.reissued[o.Holder.Netns.Ino] = true
			}
			return true
		})
	}
	return c.reissued[l.Holder.Netns.Ino]
}

// atLimit tells whether the lease's range set has as many firm holds as the
// configuration allowed when the lease was bound.
func (c *call) atLimit(l lease.Lease) bool {
	return l.Window > 0 && c.isFull(l)
}

// isFull tells whether its range set may have no further firm hold.
func (c *call) isFull(l lease.Lease) bool {
	return l.HeldLimit != 0 && int(c.tx.Counts(l.Pool, l.Set).Firm) >= max(l.HeldLimit, 0)
}

// orphan turns the lease of a holder that is proven dead into a release.
func (c *call) orphan(l lease.Lease, last lease.Life, reason string) (lease.Lease, error) {
	limited := c.atLimit(l)
	next, err := c.move(l, lease.Orphan{Last: last, Limited: limited}, store.EventOrphaned, reason)
	if err == nil && limited {
		err = c.log(l, store.EventLimited, "maxHeldShare is reached: the hold is a short one")
	}
	return next, err
}

// newBoot turns every lease of an earlier boot into a release, once: their
// holders are dead, and for some of them no DEL will come (FACTS 1.20, 2.17).
func (c *call) newBoot() error {
	if c.now.BootID == "" || c.tx.Boot() == c.now.BootID {
		return nil
	}
	var dead, held []lease.Lease
	c.tx.All(func(l lease.Lease, err error) bool {
		switch {
		case err != nil:
		case l.State == lease.Bound && c.look(l) == lease.Dead:
			dead = append(dead, l)
		case l.State == lease.Held:
			held = append(held, l)
		}
		return true
	})
	for _, l := range dead {
		if _, err := c.orphan(l, lease.Dead, "the node has booted since"); err != nil {
			return err
		}
	}
	for _, l := range held {
		if next, err := lease.Apply(l, lease.Rebase{}, c.now); err == nil {
			if err := c.put(l, next); err != nil {
				return err
			}
		}
	}
	return c.tx.SetBoot(c.now.BootID)
}

// sweepBatch bounds what one ADD tidies up. It adds at most a few holds itself.
const sweepBatch = 16

// sweep ends the holds of a pool whose time is over.
func (c *call) sweep(leases []lease.Lease) error {
	for _, l := range leases {
		if !l.Lapsed(c.now) {
			continue
		}
		last := c.look(l)
		if last == lease.Alive {
			continue
		}
		if _, err := c.move(l, lease.Expire{Last: last}, store.EventExpired, ""); err != nil {
			return err
		}
	}
	return nil
}
