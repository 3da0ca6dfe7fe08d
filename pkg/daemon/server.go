// Package daemon has the command line, log, loops and HTTP servers of agent and manager. No client
// can use a connection, memory or time of the servers without limit.
package daemon

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// MaxConns is the maximum number of open connections of servers whose clients are a few probes
	// and scrapes.
	MaxConns = 256
	// maxScrapes is the maximum number of scrapes at a time. Further scrapes get the response 503.
	maxScrapes = 4
)

// New returns an HTTP server. A client has ten seconds to send a request. A connection without a
// request ends after two minutes: clients of the Kubernetes libraries keep theirs for 90 seconds,
// and a request that meets the end of its connection fails. There are at most conns connections.
func New(handler http.Handler, conns int) *http.Server {
	limiter := &connLimiter{limit: conns}
	return &http.Server{Handler: handler, ConnState: limiter.track, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
}

// Status returns the handler of /metrics, of which it serves at most maxScrapes scrapes at a time,
// of /healthz, which succeeds while the process runs, and of /readyz, which succeeds while ready
// returns nil.
func Status(metrics prometheus.Gatherer, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
