package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health is whether the agent is ready: its last look at the node was a whole
// one. Its zero value is not.
type Health struct {
	mu     sync.Mutex
	looked bool
	err    error
}

// SetReady records how the last look went; nil makes the agent ready.
func (h *Health) SetReady(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looked, h.err = true, err
}

// Ready returns nil, or why not.
func (h *Health) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.looked {
		return errors.New("the node has not been looked at yet")
	}
	return h.err
}

// Serve is the task that answers /metrics, /healthz (the process lives) and
// /readyz.
func Serve(addr string, metrics prometheus.Gatherer, health *Health, log *slog.Logger) Task {
	return Task{Name: "serve", Run: func(ctx context.Context) error {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("--metrics-addr: %w", err)
		}
		server := &http.Server{Handler: handler(metrics, health), ReadHeaderTimeout: 10 * time.Second}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			<-ctx.Done()
			grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = server.Shutdown(grace)
		}()
		log.Info("serving", "addr", listener.Addr().String())
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		<-closed
		return ctx.Err()
	}}
}

func handler(metrics prometheus.Gatherer, health *Health) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := health.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
