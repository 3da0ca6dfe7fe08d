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

// Node contains what the tasks of an agent share.
type Node struct {
	Service *maintain.Service
	Changes *Changes
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Task is one activity of the agent. Run runs until ctx is done. If Run returns before, with or
// without an error, the agent stops. A task therefore logs and retries temporary errors itself.
type Task struct {
	Name string
	Run  func(ctx context.Context) error
}

// Run runs all tasks until ctx is done, and waits until each of them has returned. It then returns
// nil. If a task returns before ctx is done, Run stops the other tasks and returns an error with
// the name of that task.
func Run(ctx context.Context, log *slog.Logger, tasks []Task) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	for _, t := range tasks {
		running.Go(func() {
			err := t.Run(ctx)
			log.Debug("task ended", "task", t.Name, "error", err)
			if err == nil {
				err = errors.New("task ended unexpectedly")
			}
			stop(fmt.Errorf("%s: %w", t.Name, err)) // without effect if ctx is done already
		})
	}
	running.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
