package ipam

import (
	"context"
	"errors"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// What operators do by hand: the same steps that a call takes by itself.

// Preview returns what Import would adopt of a pool, and why. It changes and
// locks nothing.
func (s *Service) Preview(in Where) ([]adopt.Finding, []string, error) {
	return adopt.Find(s.node(scopeOf(in)), in.Pool, in.Sets, s.now(), policy.Defaults().SoftHold, newID)
}

// Import adopts what the host shows of a pool, also where the pool is known.
// It returns how many leases there were before and after.
func (s *Service) Import(ctx context.Context, in Where) (before, after int, err error) {
	sc := scopeOf(in)
	err = s.update(ctx, scope{}, func(c *call) error {
		mirror, err := c.mirrors.use(in.Pool, sc.mirror)
		if err != nil {
			return err
		}
		before = len(c.tx.InPool(in.Pool))
		err = c.adopt(sc, mirror)
		after = len(c.tx.InPool(in.Pool))
		return err
	})
	return before, after, err
}

// Export brings host-local's files of every pool that match selects in step
// with the store, and returns the pools.
func (s *Service) Export(ctx context.Context, match func(lease.Pool) bool) (pools []lease.Pool, err error) {
	err = s.update(ctx, scope{}, func(c *call) error {
		pools = nil
		for _, p := range c.tx.Pools() {
			if !match(p) {
				continue
			}
			mirror, err := adopt.OpenMirror(c.mirrors.ctx, p)
			if err != nil {
				return err
			}
			c.mirrors.open[p], c.export[p] = mirror, mirror
			pools = append(pools, p)
		}
		return nil
	})
	return pools, err
}

// Loss says why the store had to replace another one, "" if it did not. Pools
// that are not known yet wait for a witness.
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

// AcceptLoss goes on with a store that was lost: addresses that no witness
// knows may be handed out.
func (s *Service) AcceptLoss(ctx context.Context) error {
	return s.update(ctx, scope{}, func(c *call) error {
		if c.tx.Lost() == "" {
			return nil
		}
		about := store.Entry{Time: c.now.Wall, Event: store.EventRecovered, Reason: "the loss was accepted by hand: " + c.tx.Lost()}
		if err := c.tx.Log(about); err != nil {
			return err
		}
		return c.tx.AcceptLoss()
	})
}
