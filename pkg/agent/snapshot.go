package agent

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// snapshotPause is the shortest time between two snapshots. It limits the number of syncs to disk.
const snapshotPause = 10 * time.Second

// Snapshot returns the task that keeps a copy of all leases (store.Store.WriteSnapshot). If the
// store is lost, the leases are recovered with the help of that copy. The task writes the copy
// after each signal of node.Changes, but at most once in snapshotPause.
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
				node.Log.Warn("store lost, keeping the last snapshot", "error", err)
			default:
				node.Log.Error("writing a snapshot failed", "error", err)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(snapshotPause):
			}
		}
	}}
}
