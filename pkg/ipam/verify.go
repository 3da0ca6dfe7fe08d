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
// know the container, host-local may have served its ADD, or the store may be lost; then Verify
// imports what the host shows.
func (s *Service) Verify(ctx context.Context, req Request) error {
	ctx = files.WithMaxWait(ctx) // of both transactions together
	held, err := s.holds(ctx, req)
	unknown := err == nil || errors.Is(err, store.ErrLost) || errors.Is(err, store.ErrDamaged) || store.IsEmpty(err)
	if unknown && len(held) == 0 {
		held, err = s.importHolder(ctx, req)
	}
	if errors.Is(err, store.ErrBusy) {
		s.Node.Warnf("CHECK of container %s was not made: %v", req.ContainerID, err)
		return nil
	}
	if err != nil {
		return err
	}
	return verify(req, held)
}

// holds returns the addresses that the store has for the container.
func (s *Service) holds(ctx context.Context, req Request) (held []netip.Addr, err error) {
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error {
		leases, err := tx.ByHolder(req.ContainerID, req.IfName)
		held = addressesIn(leases, req.Pool)
		return err
	})
	return held, err
}

// importHolder imports the pool and host-local's files of the container, and returns its addresses.
func (s *Service) importHolder(ctx context.Context, req Request) (held []netip.Addr, err error) {
	who := lease.Attachment{ContainerID: req.ContainerID, IfName: req.IfName}
	files := s.Node.FilesOf(req.Pool, operation.Names(who))
	err = s.Node.Update(ctx, req.scope(), func(c *operation.Call) error {
		if err := c.AdmitFiles(req.Pool, files, nil); err != nil {
			return err
		}
		leases, err := c.Tx.ByAttachment(who, req.Pool)
		held = addressesIn(leases, req.Pool)
		return err
	})
	return held, err
}

func addressesIn(leases []lease.Lease, p lease.Pool) []netip.Addr {
	var out []netip.Addr
	for _, l := range leases {
		if l.Pool == p {
			out = append(out, l.Address)
		}
	}
	return out
}

// verify compares the container's addresses with prevResult, which need not name them: a plugin
// that adds an address to those of others may pass their result (docs/facts.md, "CHECK may come
// with the result of others"). Addresses outside of the range sets belong to other plugins.
func verify(req Request, held []netip.Addr) error {
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
