package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// statusWait is how long STATUS waits for the store's lock before it returns an error.
const statusWait = 20 * time.Millisecond

// Status returns ErrNotReady, with the error that an ADD would return, if no ADD in the pool can
// succeed. It changes neither leases nor host-local's files. A busy store is healthy, so Status
// does not wait for the lock. An exhausted pool is not an error, because the node would become
// NotReady and its pods would be evicted (docs/facts.md, "A STATUS error makes the node NotReady").
func (s *Service) Status(ctx context.Context, in operation.Scope) error {
	if err := s.ready(ctx, in); err != nil {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	return nil
}

func (s *Service) ready(ctx context.Context, in operation.Scope) error {
	if err := cmp.Or(s.Node.Store.Probe(), operation.ProbeLock(in.Pool)); err != nil {
		return err
	}
	imported, lost, err := s.poolState(ctx, in.Pool, 0)
	if imported || err != nil {
		return err
	}
	dir, err := hostlocal.OpenUnlocked(in.Pool)
	if err != nil {
		return fmt.Errorf("%w: %w", importer.ErrUnreadable, err)
	}
	notImported := s.Node.CanImport(in, lost, dir)
	if notImported == nil {
		return nil
	}
	// An ADD may have imported the pool meanwhile, and changed the files while they were read here.
	if imported, _, err := s.poolState(ctx, in.Pool, statusWait); imported || err != nil {
		return err
	}
	return notImported
}

// poolState reports whether an ADD would import nothing of the pool, and returns the reason if the
// store was lost with its leases, otherwise "". If the store stays busy for the time wait,
// poolState reports true.
func (s *Service) poolState(ctx context.Context, p lease.Pool,
	wait time.Duration) (imported bool, lost string, err error) {
	ctx, cancel := context.WithDeadline(ctx, time.Now().Add(wait))
	defer cancel()
	id := "none yet" // of the store
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error {
		if id = tx.ID(); tx.Imported(p) {
			imported = hostlocal.IsMarked(p) // otherwise an ADD looks for what is in use
		} else {
			lost = tx.Lost()
		}
		return nil
	})
	switch {
	case errors.Is(err, store.ErrBusy):
		return true, "", nil
	case errors.Is(err, store.ErrLost):
		lost, err = err.Error(), nil
	}
	return imported, lost, cmp.Or(err, s.Node.ProbeOwner(id, p))
}
