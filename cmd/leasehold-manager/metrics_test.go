package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
)

// slow is a metric whose collection lasts until the channel is closed.
type slow chan struct{}

func (s slow) Describe(chan<- *prometheus.Desc) {}

func (s slow) Collect(chan<- prometheus.Metric) { <-s }

// TestManagersScrapesAreLimited has more clients scrape than the manager serves at a time.
func TestManagersScrapesAreLimited(t *testing.T) {
	release := make(slow)
	metrics.Registry.MustRegister(release)
	defer metrics.Registry.Unregister(release)
	h := daemon.Metrics(metrics.Registry)
	const clients = 3 * daemon.MaxScrapes
	codes := make(chan int, clients)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			codes <- w.Code
		})
	}
	for range clients - daemon.MaxScrapes {
		select {
		case code := <-codes:
			if code != http.StatusServiceUnavailable {
				t.Errorf("status %d, want 503", code)
			}
		case <-time.After(time.Minute):
			t.Fatal("more clients wait for a collection")
		}
	}
	close(release)
	all.Wait()
}
