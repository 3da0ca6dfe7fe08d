package maintain

import (
	"context"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Bound returns the bound leases of an attachment in all pools, for the announcer. It returns none
// if the store was never used.
func (s *Service) Bound(ctx context.Context, who lease.Attachment) (leases []lease.Lease, err error) {
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error {
		leases, err = tx.ByHolder(who.ContainerID, who.IfName)
		return err
	})
	if store.IsEmpty(err) {
		err = nil
	}
	return leases, err
}
