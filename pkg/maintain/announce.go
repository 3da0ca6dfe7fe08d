package maintain

import (
	"context"
	"net"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
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

// RecordMAC records the hardware address of an attachment's interface, which the announcer has
// read, in the leases of the attachment.
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
