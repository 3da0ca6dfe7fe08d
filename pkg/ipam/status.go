package ipam

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// statusWait is how long STATUS waits for the store before it fails.
const statusWait = 20 * time.Millisecond

// Status returns ErrNotReady, with the error of an ADD, if no ADD in the pool can succeed. It
// changes no lease and no file of host-local's. It does not wait for a busy store, which is a
// healthy one. An exhausted pool is no failure, because the node would be NotReady and its pods
// evicted (docs/facts.md, "A STATUS error makes the node NotReady").
func (s *Service) Status(ctx context.Context, in PoolHint) error {
	if err := s.ready(ctx, in); err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	return nil
}

func (s *Service) ready(ctx context.Context, in PoolHint) error {
	if err := s.Store.Probe(); err != nil {
		return err
	}
	adopted, lost, err := s.poolState(ctx, in.Pool, 0)
	if err != nil {
		return err
	}
	mirror, err := hostlocal.OpenUnlocked(in.Pool)
	if in.Options != nil && !in.Options.Mirror {
		mirror, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", adopt.ErrUnreadable, err)
	}
	if adopted {
		return nil
	}
	notAdopted := s.CanAdopt(in.scope(), lost, mirror)
	if notAdopted == nil {
		return nil
	}
	// An ADD may have adopted the pool meanwhile, and written its files while they were read here.
	if adopted, _, err := s.poolState(ctx, in.Pool, statusWait); adopted || err != nil {
		return err
	}
	return notAdopted
}

// poolState reports whether the pool was adopted, and why the store was lost, "" if it was not. A
// pool whose store stays busy for the given time counts as adopted.
func (s *Service) poolState(ctx context.Context, p lease.Pool,
	wait time.Duration) (adopted bool, lost string, err error) {
	ctx, cancel := context.WithDeadline(ctx, time.Now().Add(wait))
	defer cancel()
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		adopted, lost = tx.Adopted(p), tx.Lost()
		return nil
	})
	switch {
	case errors.Is(err, store.ErrBusy):
		return true, "", nil
	case store.IsEmpty(err):
		return false, "", nil
	case errors.Is(err, store.ErrLost):
		return false, err.Error(), nil
	}
	return adopted, lost, err
}
