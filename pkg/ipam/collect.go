package ipam

import (
	"context"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// Collect performs GC: it releases every bound lease of the pool whose attachment is not in valid,
// as a DEL would. It changes neither holds nor leases with an unknown owner, because no list of
// valid attachments can contain those. A lease with an unknown interface may be of any interface of
// its container (docs/design.md, "Files that name the container alone").
func (s *Service) Collect(ctx context.Context, p lease.Pool, valid []lease.Attachment) error {
	keep := make(map[lease.Attachment]bool, len(valid))
	for _, a := range valid {
		keep[a] = true
		keep[lease.Attachment{ContainerID: a.ContainerID}] = true // the interface is unknown
	}
	return s.Node.Update(ctx, transact.Existing(p, nil), func(c *transact.Call) error {
		if err := c.AdmitAll(p); err != nil {
			return err
		}
		for _, l := range c.Tx.InPool(p) {
			if l.State != lease.Bound || l.Holder.ContainerID == "" ||
				keep[l.Holder.Attachment()] {
				continue
			}
			last := c.Evidence.Last(l)
			if last == lease.Unknown {
				last = lease.Alive // so that the address is not assigned until the state is known
			}
			if _, err := c.End(l, lease.Release{Holder: l.Holder, LastHolder: last}, c.Now, "GC"); err != nil {
				return err
			}
		}
		return nil
	})
}
