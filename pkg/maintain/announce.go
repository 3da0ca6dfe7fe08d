package maintain

import (
	"context"
	"net"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// Bound returns what an attachment holds now, in all pools; nothing where the
// store is new or lost.
func (s *Service) Bound(ctx context.Context, who lease.Attachment) (leases []lease.Lease, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		leases, err = tx.ByHolder(who.ContainerID, who.IfName)
		return err
	})
	if store.IsEmpty(err) {
		err = nil
	}
	return leases, err
}

// RecordMAC writes down which hardware address an attachment's interface has. It
// changes nothing for another attachment's leases.
func (s *Service) RecordMAC(ctx context.Context, who lease.Attachment, mac net.HardwareAddr) error {
	_, err := s.inSteps(ctx, 1, func(c *transact.Call, _ int) error {
		leases, err := c.Retained(who)
		if err != nil {
			return err
		}
		return c.SetMAC(leases, mac)
	})
	return err
}
