package ipam

import (
	"context"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// Collect is CNI's GC: every attachment of the pool that is not valid is
// released, exactly as a DEL would. Holds and their windows stay, and so does
// what nobody known has: no list can name it.
func (s *Service) Collect(ctx context.Context, p lease.Pool, valid []lease.Attachment) error {
	keep := make(map[lease.Attachment]bool, len(valid))
	for _, a := range valid {
		keep[a] = true
	}
	return s.Update(ctx, transact.Existing(p, nil), func(c *transact.Call) error {
		if err := c.AdmitFiles(p); err != nil {
			return err
		}
		for _, l := range c.Tx.InPool(p) {
			if l.State != lease.Bound || l.Holder.ContainerID == "" ||
				keep[lease.Attachment{ContainerID: l.Holder.ContainerID, IfName: l.Holder.IfName}] {
				continue
			}
			last := c.Last(l)
			if last == lease.Unknown {
				last = lease.Alive // its address stays out of use until that can be told
			}
			if err := c.ReleaseLease(l, last, c.Now, "GC"); err != nil {
				return err
			}
		}
		return nil
	})
}
