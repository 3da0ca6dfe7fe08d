package agent

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// snapshotPause is the least time between two snapshots: each is synced.
const snapshotPause = 10 * time.Second

// Snapshot is the task that keeps a copy of all leases, for the day when the
// store is lost. A copy is made after changes, and with every slow poll.
func Snapshot(node Node) Task {
	changes := node.Changes.Subscribe()
	return Task{Name: "snapshot", Run: func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changes:
			}
			err := node.Service.Store.WriteSnapshot(ctx, node.Service.Clock())
			switch {
			case err == nil, store.IsEmpty(err), ctx.Err() != nil:
			case errors.Is(err, store.ErrLost):
				node.Log.Warn("the last snapshot is kept", "reason", err)
			default:
				node.Log.Error("no snapshot could be written", "error", err)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(snapshotPause):
			}
		}
	}}
}
