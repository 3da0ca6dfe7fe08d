package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
)

// Health is the readiness of the agent. The agent is ready if its last survey of the node was
// complete. The zero value is not ready.
type Health struct{ result atomic.Pointer[error] } // of the last survey

// setReady records the result of the last survey. If err is nil, the agent is ready.
func (h *Health) setReady(err error) { h.result.Store(&err) }

// ready returns nil if the agent is ready, otherwise the reason why it is not.
func (h *Health) ready() error {
	if err := h.result.Load(); err != nil {
		return *err
	}
	return errors.New("the node has not been surveyed yet")
}

// Serve returns the task that serves /metrics, /healthz and /readyz at addr. /healthz succeeds
// while the process runs, and /readyz while the agent is ready. Requests in progress fail when ctx
// is done.
func Serve(addr string, metrics prometheus.Gatherer, health *Health, log *slog.Logger) Task {
	return Task{Name: "serve", Run: func(ctx context.Context) error {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("--metrics-addr: %w", err)
		}
		server := daemon.New(daemon.Status(metrics, health.ready), daemon.MaxConns)
		context.AfterFunc(ctx, func() { server.Close() })
		log.Info("serving", "addr", listener.Addr().String())
		return server.Serve(listener)
	}}
}
