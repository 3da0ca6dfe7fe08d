package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/leasehold-cni/leasehold/pkg/httpserver"
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
	w := httptest.NewRecorder()
	handlerOf(t, options{secureMetrics: true}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusUnauthorized {
		t.Errorf("--metrics-secure, without a token: status %d, want 401", w.Code)
	}
	h := handlerOf(t, options{})
	const clients = 3 * httpserver.MaxScrapes
	codes := make(chan int, clients)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			codes <- w.Code
		})
	}
	for range clients - httpserver.MaxScrapes {
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

// handlerOf returns the handler of /metrics of a manager with some options.
func handlerOf(t *testing.T, o options) http.Handler {
	t.Helper()
	h, err := metricsHandler(o, &rest.Config{Host: "https://127.0.0.1:1"}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return h
}
