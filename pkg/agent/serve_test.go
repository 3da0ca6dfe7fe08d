package agent

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestScrapesAreLimited has 64 clients scrape while a collection takes long: few wait for it, and
// all of them read the store once.
func TestScrapesAreLimited(t *testing.T) {
	var gathered atomic.Int32
	release := make(chan struct{})
	h := handler(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		gathered.Add(1)
		<-release
		return nil, nil
	}), &Health{})
	const clients = 64
	codes := make(chan int, clients)
	scrape := func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		codes <- w.Code
	}
	var all sync.WaitGroup
	for range clients {
		all.Go(scrape)
	}
	for range clients - maxScrapes {
		if code := <-codes; code != http.StatusServiceUnavailable {
			t.Errorf("status %d, want 503", code)
		}
	}
	close(release)
	all.Wait()
	for range maxScrapes {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("status %d, want 200", code)
		}
	}
	if n := gathered.Load(); n != 1 {
		t.Errorf("collected %d times", n)
	}
}
