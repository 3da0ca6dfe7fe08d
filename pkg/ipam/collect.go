package ipam

import (
	"context"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// Collect releases every attachment of the pool that is not valid, as a DEL would (GC). It does not
// change holds, and not the leases of unknown owners, which no list of valid attachments can name.
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
				last = lease.Alive // its address is not assigned until its state is known
			}
			if err := c.ReleaseLease(l, last, c.Now, "GC"); err != nil {
				return err
			}
		}
		return nil
	})
}
