package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
)

// Health is the readiness of the agent. The agent is ready if its last survey of the node was
// complete, and if the API server does not refuse what it asks for. The zero value is not ready.
type Health struct {
	result atomic.Pointer[error] // of the last survey

	mu      sync.Mutex
	refused map[string]time.Time // since when the API server refuses a request, by method and path
}

// systemNamespace is the part of a path with the namespace of leasehold.
const systemNamespace = "/namespaces/leasehold-system/"

// refusedDelay is how long the API server must refuse a request until the agent is not ready.
const refusedDelay = time.Minute

// Transport returns a transport for requests to the API server, whose responses count for the
// readiness. Requests about objects in namespaces of users do not: a quota may refuse those, or
// that the namespace is being deleted.
func (h *Health) Transport(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil {
			h.observe(r.Method, r.URL.Path, response.StatusCode, time.Now())
		}
		return response, err
	})
}

func (h *Health) observe(method, path string, code int, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	const all = "every request"
	key := method + " " + path
	isOfUsers := strings.Contains(path, "/namespaces/") && !strings.Contains(path, systemNamespace)
	switch {
	case code == http.StatusUnauthorized:
		key = all
	case code == http.StatusForbidden && !isOfUsers:
		delete(h.refused, all)
	default:
		delete(h.refused, all)
		if _, found := h.refused[key]; found { // what else was refused may not be asked for before minutes
			clear(h.refused)
		}
		return
	}
	if h.refused == nil {
		h.refused = map[string]time.Time{}
	}
	if _, found := h.refused[key]; !found {
		h.refused[key] = now
	}
}

// refusal returns an error if the API server has refused a request for long enough.
func (h *Health) refusal(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, since := range h.refused {
		if now.Sub(since) >= refusedDelay {
			return fmt.Errorf("the API server has refused the agent since %s: %s; compare its ClusterRole and Role, "+
				"their bindings and the policies with the manifests", since.UTC().Format(time.RFC3339), key)
		}
	}
	return nil
}

// setReady records the result of the last survey. If err is nil, the agent is ready.
func (h *Health) setReady(err error) { h.result.Store(&err) }

// ready returns nil if the agent is ready, otherwise the reason why it is not.
func (h *Health) ready() error {
	if err := h.result.Load(); err != nil {
		return cmp.Or(*err, h.refusal(time.Now()))
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
