package maintain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Find returns the leases that the sources of the node show of a pool, as an import reads them.
func (s *Service) Find(ctx context.Context, in operation.Scope) (importer.Found, error) {
	err := s.Node.Store.View(ctx, func(tx *store.Tx) error { in = in.From(tx); return nil })
	if err != nil && !errors.Is(err, store.ErrLost) {
		return importer.Found{}, err
	}
	return s.Node.Find(in, nil)
}

// Preview returns the leases that Import would import for a pool, and a text for each problem. It
// changes nothing. If the view of this process is not proven, one of the problems is that Import
// would fail.
func (s *Service) Preview(ctx context.Context, p lease.Pool) ([]importer.Finding, []string, error) {
	v, err := s.List(ctx, func(lease.Lease) bool { return true })
	if err != nil && !errors.Is(err, store.ErrLost) {
		return nil, nil, err
	}
	found, err := s.Find(ctx, operation.Existing(p, nil))
	problems := found.Problems
	if unproven := s.prove(v); unproven != nil {
		problems = append(problems, fmt.Sprintf("nothing of this would be imported from here: %v", unproven))
	}
	return found.Findings, problems, err
}

// Import imports the leases of a pool that the sources of the host show, even if the pool was
// imported before. It returns the number of the pool's leases before and after. It returns
// ErrNoHostView if it is not proven that the process sees the host.
func (s *Service) Import(ctx context.Context, p lease.Pool) (before, after int, err error) {
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error { before = len(tx.InPool(p)); return nil })
	if err != nil && !errors.Is(err, store.ErrLost) {
		return 0, 0, err
	}
	in := operation.Existing(p, nil)
	in.Import = true
	err = s.Node.Update(ctx, in, func(c *operation.Call) error {
		after = len(c.Tx.InPool(p))
		return c.ProveView()
	})
	return before, after, err
}

// Export writes host-local's files of every pool, and returns the pools, without those that have no
// lease and no directory that host-local could use, or that another node keeps. It first imports
// the addresses that host-local has assigned, and the pools in dataDirs of which a store was lost.
// It returns ErrNoHostView if it is not proven that the process sees the host, because the
// directory at host-local's path may then be another one, too.
func (s *Service) Export(ctx context.Context, dataDirs ...string) (pools []lease.Pool, err error) {
	lost, err := s.importLost(ctx, dataDirs)
	if err != nil {
		return nil, err
	}
	err = s.Node.Update(ctx, operation.Scope{}, func(c *operation.Call) error {
		pools = slices.DeleteFunc(c.Tx.Pools(), func(p lease.Pool) bool {
			isUsed := len(c.Tx.InPool(p)) > 0 || hostlocal.Exists(p) && hostlocal.ProbeLock(p) == nil
			return !isUsed || slices.Contains(lost, p) || s.Node.ProbeOwner(c.Tx.ID(), p) != nil
		})
		if pools = append(pools, lost...); len(pools) == 0 {
			return nil
		}
		if err := c.ProveView(); err != nil {
			return err
		}
		for _, p := range pools {
			if err := c.Export(p); err != nil {
				return err
			}
		}
		return nil
	})
	return pools, err
}

// importLost imports the pools in data directories that the store does not know and no other node
// keeps, and returns them.
func (s *Service) importLost(ctx context.Context, dataDirs []string) (lost []lease.Pool, err error) {
	err = s.Node.Update(ctx, operation.Scope{}, func(c *operation.Call) error {
		lost = nil
		for _, dir := range dataDirs {
			lost = append(lost, hostlocal.MarkedIn(dir)...)
		}
		lost = slices.DeleteFunc(lost, func(p lease.Pool) bool {
			return slices.Contains(c.Tx.Pools(), p) || s.Node.ProbeOwner(c.Tx.ID(), p) != nil
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range lost {
		_, _, err := s.Import(ctx, p)
		if err != nil && !errors.Is(err, operation.ErrNoEvidence) { // then host-local's files are all that there is
			return nil, err
		}
	}
	return lost, nil
}

// Loss returns the reason if the store was lost, otherwise "". After a loss, a pool that has not
// been imported since assigns no addresses until import succeeds.
func (s *Service) Loss(ctx context.Context) (why string, err error) {
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error { why = tx.Lost(); return nil })
	if errors.Is(err, store.ErrLost) {
		return err.Error(), nil
	}
	return why, err
}

// AcceptLoss allows pools to assign addresses after a loss of the store, although no source proves
// to name all addresses in use. It needs no proven view, because an operator is responsible for it.
func (s *Service) AcceptLoss(ctx context.Context) error {
	return s.Node.Update(ctx, operation.Scope{}, func(c *operation.Call) error {
		if c.Tx.Lost() == "" {
			return nil
		}
		about := store.Entry{Time: c.Now.Wall, Event: store.EventRecovered, Reason: "the loss was accepted by hand: " +
			c.Tx.Lost()}
		return cmp.Or(c.Tx.Log(about), c.Tx.AcceptLoss())
	})
}
