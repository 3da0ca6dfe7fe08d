package httpserver

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

const (
	// MaxScrapes is the maximum number of scrapes at a time. Further scrapes get the response 503.
	MaxScrapes = 4
	// collectInterval is the least time between two collections. A scrape that comes earlier gets
	// the metrics of the last collection.
	collectInterval = time.Second
)

// Metrics returns the handler of /metrics. It serves at most MaxScrapes scrapes at a time, and
// collects the metrics at most once a second.
func Metrics(metrics prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(&limited{next: metrics}, promhttp.HandlerOpts{MaxRequestsInFlight: MaxScrapes})
}

// limited collects metrics at most once in collectInterval.
type limited struct {
	next prometheus.Gatherer

	mu       sync.Mutex
	at       time.Time // of the last collection
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. It returns the result of the last collection, or collects
// again if that is older than interval.
func (g *limited) Gather() ([]*dto.MetricFamily, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.at) >= collectInterval {
		g.families, g.err = g.next.Gather()
		g.at = time.Now()
	}
	return g.families, g.err
}
