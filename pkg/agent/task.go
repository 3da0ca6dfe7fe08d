package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

// Node is what the tasks have in common.
type Node struct {
	Service *maintain.Service
	Changes *Changes
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Task is one activity of the agent. Run returns when ctx is done, or with an error that the agent
// cannot continue after; a task logs and retries temporary failures itself.
type Task struct {
	Name string
	Run  func(ctx context.Context) error
}

// Run runs all tasks until ctx is done and each of them has returned. If one returns before, the
// others are stopped, and its error is returned.
func Run(ctx context.Context, log *slog.Logger, tasks []Task) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	for _, t := range tasks {
		running.Go(func() {
			err := t.Run(ctx)
			switch {
			case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)):
				log.Debug("task stopped", "task", t.Name)
			case err == nil:
				stop(fmt.Errorf("%s: task ended unexpectedly", t.Name))
			default:
				stop(fmt.Errorf("%s: %w", t.Name, err))
			}
		})
	}
	running.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
