package maintain

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// What operators do by hand: the same steps that a call takes by itself.

// Preview returns what the host shows of a pool, and why. It changes nothing.
// The problems say what is missing in that, also where Import would not act on it.
func (s *Service) Preview(ctx context.Context, p lease.Pool, sets []pool.Set) ([]adopt.Finding, []string, error) {
	now := s.Clock()
	unproven := s.Host.ProveView("", now.BootID, nil) // where there is no store
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		unproven = s.Host.ProveView(tx.NamespaceIDs(), now.BootID, tx.Bound())
		return nil
	})
	if err != nil && !store.IsEmpty(err) && !errors.Is(err, store.ErrLost) {
		return nil, nil, err
	}
	found, err := s.Find(transact.Existing(p, sets), now)
	problems := found.Problems
	if unproven != nil {
		problems = append(problems, fmt.Sprintf("nothing of this would be adopted from here: %v", unproven))
	}
	return found.Findings, problems, err
}

// Import adopts what the host shows of a pool, also where the pool is known.
// It returns how many leases there were before and after. ErrNoHostView where the
// view is not proven to be the host's.
func (s *Service) Import(ctx context.Context, p lease.Pool, sets []pool.Set) (before, after int, err error) {
	err = s.Update(ctx, transact.Scope{}, func(c *transact.Call) error {
		if err := c.ProveView(); err != nil {
			return err
		}
		before = len(c.Tx.InPool(p))
		err := c.Import(transact.Existing(p, sets))
		after = len(c.Tx.InPool(p))
		return err
	})
	return before, after, err
}

// Export brings host-local's files of every pool that match selects in step
// with the store, and returns the pools. What host-local has given meanwhile
// becomes a lease first. ErrNoHostView where the view is not proven to be the host's:
// the files may be others.
func (s *Service) Export(ctx context.Context, match func(lease.Pool) bool) (pools []lease.Pool, err error) {
	err = s.Update(ctx, transact.Scope{}, func(c *transact.Call) error {
		pools = nil
		for _, p := range c.Tx.Pools() {
			if match(p) {
				pools = append(pools, p)
			}
		}
		if len(pools) == 0 {
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

// Loss says why the store had to replace another one, "" if it did not. Pools
// that are not known yet wait for evidence.
func (s *Service) Loss(ctx context.Context) (why string, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) error { why = tx.Lost(); return nil })
	if errors.Is(err, store.ErrLost) {
		return err.Error(), nil
	}
	if store.IsEmpty(err) {
		return "", nil
	}
	return why, err
}

// AcceptLoss goes on with a store that was lost: addresses that no source
// knows may be handed out. That is the operator's word, and takes no view.
func (s *Service) AcceptLoss(ctx context.Context) error {
	return s.Update(ctx, transact.Scope{}, func(c *transact.Call) error {
		if c.Tx.Lost() == "" {
			return nil
		}
		about := store.Entry{Time: c.Now.Wall, Event: store.EventRecovered, Reason: "the loss was accepted by hand: " +
			c.Tx.Lost()}
		if err := c.Tx.Log(about); err != nil {
			return err
		}
		return c.Tx.AcceptLoss()
	})
}
