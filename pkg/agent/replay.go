package agent

import "context"

// Replay returns the task that records spooled DELs in the store after each signal of
// node.Changes, all that wait in one transaction. Views show them as done before; with the replay
// they are in the journal, and outlive a power cut.
func Replay(node Node) Task {
	changes := node.Changes.Subscribe()
	return Task{Name: "replay", Run: func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changes:
			}
			// The survey reports why it fails, and repeats it.
			if err := node.Service.Replay(ctx); err != nil {
				node.Log.Debug("replaying DELs failed", "error", err)
			}
		}
	}}
}
