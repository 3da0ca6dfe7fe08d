package control

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// What fails during an outage of the API server is repeated soon after that, however much it is.
// controller-runtime waits about as long again, up to 16 minutes.
func TestRetries(t *testing.T) {
	for requests, outage := range map[int]time.Duration{1: 10 * time.Minute, 1000: 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			limiter, began, count := options(nil, true).RateLimiter, time.Now(), 0
			next := make([]time.Duration, requests)
			for slices.Min(next) < outage {
				i := slices.Index(next, slices.Min(next))
				time.Sleep(next[i] - time.Since(began))
				next[i] += limiter.When(reconcile.Request{NamespacedName: types.NamespacedName{Name: fmt.Sprint(i)}})
				count++
			}
			if last := slices.Max(next) - outage; last > maxRetry || count > 100*requests {
				t.Errorf("%d requests fail for %s: %d retries, the last one %s later; want at most %d, %s later",
					requests, outage, count, last, 100*requests, maxRetry)
			}
		})
	}
}
