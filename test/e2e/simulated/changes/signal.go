//go:build simulated

// The overlay of package pinbench adds this file to pkg/agent.
package agent

import (
	"context"
	"log/slog"
	"time"
)

// NewSimulatedChanges returns Changes for RunSimulated.
func NewSimulatedChanges(log *slog.Logger) *Changes { return &Changes{log: log, poll: pollInterval} }

// RunSimulated is Run for a node whose writes are announced by Written. A machine has fewer inotify
// instances than simulated nodes.
func (c *Changes) RunSimulated(ctx context.Context) error {
	poll := time.NewTicker(c.poll)
	defer poll.Stop()
	for {
		c.signal.Send()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
}

// Written announces a write of the store.
func (c *Changes) Written() { time.AfterFunc(settle, c.signal.Send) }
