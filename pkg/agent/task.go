package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

// Node contains what the tasks of an agent share.
type Node struct {
	Service *maintain.Service
	Changes *Changes
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Failing *prometheus.GaugeVec // of NewFailing; nil if it is not shown which tasks have a problem
}

// Problem returns the problem of a task, which is none yet.
func (n Node) Problem(task string) (p daemon.Problem) {
	if n.Failing != nil {
		p.Failing = n.Failing.WithLabelValues(task)
	}
	return p
}

// NewFailing creates and registers the metric that says which tasks have a problem
// (Node.Failing).
func NewFailing(r prometheus.Registerer) *prometheus.GaugeVec {
	return promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{
		Name: "leasehold_task_failing",
		Help: "Whether something failed in the last pass of a task (1); it is repeated, and the log has the reason.",
	}, []string{"task"})
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
	running, inner := errgroup.WithContext(ctx)
	for _, t := range tasks {
		running.Go(func() error {
			err := t.Run(inner)
			log.Debug("task ended", "task", t.Name, "error", err)
			if err == nil {
				err = errors.New("task ended unexpectedly")
			}
			return fmt.Errorf("%s: %w", t.Name, err)
		})
	}
	err := running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}
