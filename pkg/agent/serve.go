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
	dto "github.com/prometheus/client_model/go"
)

// Health is the readiness of the agent. The agent is ready if its last survey of the node was
// complete. The zero value is not ready.
type Health struct {
	mu       sync.Mutex
	surveyed bool
	err      error
}

// setReady records the result of the last survey. If err is nil, the agent is ready.
func (h *Health) setReady(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.surveyed, h.err = true, err
}

// ready returns nil if the agent is ready, otherwise the reason why it is not.
func (h *Health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.surveyed {
		return errors.New("the node has not been surveyed yet")
	}
	return h.err
}

// Serve returns the task that serves /metrics, /healthz and /readyz at addr. /healthz succeeds
// while the process runs, and /readyz while the agent is ready. When ctx is done, requests in
// progress have five seconds to finish.
func Serve(addr string, metrics prometheus.Gatherer, health *Health, log *slog.Logger) Task {
	return Task{Name: "serve", Run: func(ctx context.Context) error {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("--metrics-addr: %w", err)
		}
		server := newServer(handler(metrics, health))
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
		return nil
	}}
}

// newServer returns an HTTP server on which no client can use a connection or memory without limit.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
}

const (
	// maxScrapes is the maximum number of scrapes at a time. Further scrapes get the response 503.
	maxScrapes = 4
	// scrapeInterval is the least time between two collections. Each collection reads the store. A
	// scrape that comes earlier gets the metrics of the last collection.
	scrapeInterval = time.Second
)

// limitedGatherer collects metrics at most once in scrapeInterval.
type limitedGatherer struct {
	next prometheus.Gatherer

	mu       sync.Mutex
	at       time.Time // of the last collection
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. It returns the result of the last collection, or collects
// again if that is older than scrapeInterval.
func (g *limitedGatherer) Gather() ([]*dto.MetricFamily, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.at) >= scrapeInterval {
		g.families, g.err = g.next.Gather()
		g.at = time.Now()
	}
	return g.families, g.err
}

// handler returns the handler of the agent's HTTP server.
func handler(metrics prometheus.Gatherer, health *Health) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(&limitedGatherer{next: metrics},
		promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := health.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
