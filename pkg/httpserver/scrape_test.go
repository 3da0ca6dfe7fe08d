package httpserver

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestScrapesAreLimited has 64 clients scrape while a collection takes long: few wait for it, and
// all of them read the store once.
func TestScrapesAreLimited(t *testing.T) {
	var gathered atomic.Int32
	release := make(chan struct{})
	h := Metrics(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		gathered.Add(1)
		<-release
		return nil, nil
	}))
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
	for range clients - MaxScrapes {
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
	for range MaxScrapes {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("status %d, want 200", code)
		}
	}
	if n := gathered.Load(); n != 1 {
		t.Errorf("collected %d times", n)
	}
}

func TestCollectionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gathered, failure := 0, errors.New("no")
		g := &limited{next: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			gathered++
			return make([]*dto.MetricFamily, gathered), failure
		})}
		for i, c := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {collectInterval - 1, 1}, {1, 2}, {0, 2}, {collectInterval, 3}} {
			time.Sleep(c.after)
			if families, err := g.Gather(); len(families) != c.want || gathered != c.want || !errors.Is(err, failure) {
				t.Errorf("scrape %d, %s after the one before: result %d of %d collections, %v; want %d", i+1, c.after,
					len(families), gathered, err, c.want)
			}
		}
	})
}
