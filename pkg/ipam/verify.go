package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Verify performs CHECK: it returns ErrCheckFailed unless the container has addresses, and all
// those of prevResult that are in the range sets. It reads the store with a shared lock. If the
// store is busy it returns nil, because that is not a fault of the container. If the store does not
// know the container or an address, host-local may have served the ADD, or the store may be lost;
// then Verify imports what the host shows.
func (s *Service) Verify(ctx context.Context, req Request) error {
	ctx = files.WithMaxWait(ctx) // of both transactions together
	who := lease.Attachment{ContainerID: req.ContainerID, IfName: req.IfName}
	var leases []lease.Lease
	err := s.Node.Store.View(ctx, func(tx *store.Tx) (err error) {
		leases, err = tx.ByHolder(who.ContainerID, who.IfName)
		return err
	})
	unknown := err == nil || errors.Is(err, store.ErrLost) || errors.Is(err, store.ErrDamaged)
	if unknown && verify(req, leases) != nil {
		files := s.Node.FilesOf(req.Pool, operation.Names(who))
		err = s.Node.Update(ctx, req.scope(), func(c *operation.Call) (err error) {
			if err = c.ImportFiles(req.Pool, files, nil); err == nil {
				leases, err = c.Tx.ByAttachment(who, req.Pool)
			}
			return err
		})
	}
	if errors.Is(err, store.ErrBusy) {
		s.Node.Warnf("CHECK of container %s was not made: %v", req.ContainerID, err)
		return nil
	}
	if err != nil {
		return err
	}
	return verify(req, leases)
}

// verify compares the container's addresses with prevResult, which need not name them: a plugin
// that adds an address to those of others may pass their result (docs/facts.md, "CHECK may come
// with the result of others"). Addresses outside of the range sets belong to other plugins.
func verify(req Request, leases []lease.Lease) error {
	var held []netip.Addr
	for _, l := range leases {
		if l.Pool == req.Pool {
			held = append(held, l.Address)
		}
	}
	if len(held) == 0 {
		return fmt.Errorf("%w: container %s has none on %s", ErrCheckFailed, req.ContainerID, req.IfName)
	}
	for _, a := range req.Prev {
		if pool.Usable(req.Sets, a) && !slices.Contains(held, a) {
			return fmt.Errorf("%w: prevResult names %s, which container %s does not hold", ErrCheckFailed, a,
				req.ContainerID)
		}
	}
	return nil
}
