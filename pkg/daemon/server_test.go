package daemon

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/test/check"
)

// slow is a metric whose collection lasts until the channel is closed.
type slow chan struct{}

func (s slow) Describe(chan<- *prometheus.Desc) {}

func (s slow) Collect(chan<- prometheus.Metric) { <-s }

// TestScrapesAreLimited has more clients scrape than a program serves at a time.
func TestScrapesAreLimited(t *testing.T) {
	release := make(slow)
	registry := prometheus.NewRegistry()
	registry.MustRegister(release)
	h := Status(registry, nil)
	const clients = 3 * maxScrapes
	codes := make(chan int, clients)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			codes <- w.Code
		})
	}
	for range clients - maxScrapes {
		select {
		case code := <-codes:
			check.Equal(t, code, http.StatusServiceUnavailable, "status")
		case <-time.After(time.Minute):
			t.Fatal("more clients wait for a collection")
		}
	}
	close(release)
	all.Wait()
}
