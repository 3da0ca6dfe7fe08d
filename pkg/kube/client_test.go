package kube

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// A request that the API server rejects because it has too many is not repeated by client-go.
func TestRejectedRequestIsNotRepeated(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	}))
	defer server.Close()
	clients, err := NewClients(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	err = clients.Core.Get().Resource("nodes").Name("a").Do(t.Context()).Error()
	if !apierrors.IsTooManyRequests(err) || requests.Load() != 1 {
		t.Errorf("%d requests: %v", requests.Load(), err)
	}
}

// Passes of programs that start at the same moment are spread from the second one on.
func TestRepeatSpreads(t *testing.T) {
	const programs, period = 600, time.Minute
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		ready := func(context.Context) bool { return true }
		began, perSecond := time.Now(), [600]atomic.Int32{}
		for range programs {
			go func() {
				_ = Repeat(ctx, period, ready, func(context.Context) {
					perSecond[int(time.Since(began).Seconds())].Add(1)
				})
			}()
		}
		<-ctx.Done()
		synctest.Wait()
		total := int32(0)
		for second := range perSecond {
			n := perSecond[second].Load()
			total += n
			if second > 0 && n > 3*programs/60 {
				t.Errorf("%d passes in second %d, want at most %d", n, second, 3*programs/60)
			}
		}
		if first := perSecond[0].Load(); first < programs || total < 9*programs || total > 11*programs {
			t.Errorf("%d passes at once, %d in 10 minutes, of %d programs", first, total, programs)
		}
	})
}
