package ipam

import (
	"context"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Collect is CNI's GC: every attachment of the pool that is not valid is
// released, exactly as a DEL would. Holds and their windows stay, and so does
// what nobody known has: no list can name it.
func (s *Service) Collect(ctx context.Context, p lease.Pool, valid []Attachment) error {
	keep := make(map[Attachment]bool, len(valid))
	for _, a := range valid {
		keep[a] = true
	}
	return s.update(ctx, scopeOf(PoolHint{Pool: p}), func(c *call) error {
		if err := c.admitFiles(p); err != nil {
			return err
		}
		for _, l := range c.tx.InPool(p) {
			if l.State != lease.Bound || l.Holder.ContainerID == "" ||
				keep[Attachment{l.Holder.ContainerID, l.Holder.IfName}] {
				continue
			}
			last := c.last(l)
			if last == lease.Unknown {
				last = lease.Alive // its address stays out of use until that can be told
			}
			if err := c.releaseLease(l, last, c.now, "GC"); err != nil {
				return err
			}
		}
		return nil
	})
}
