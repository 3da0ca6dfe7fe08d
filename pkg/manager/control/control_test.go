package control

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// What fails during an outage of the API server is repeated soon after that. controller-runtime
// waits about as long again, up to 16 minutes.
func TestRetries(t *testing.T) {
	limiter, outage := options(nil, true).RateLimiter, 10*time.Minute
	count, most := 0, time.Duration(0)
	for at := time.Duration(0); at < outage; count++ {
		next := limiter.When(reconcile.Request{})
		most, at = max(most, next), at+next
	}
	if most > maxRetry || count > 100 {
		t.Errorf("%d retries, the last one after %s; want at most 100, after %s", count, most, maxRetry)
	}
}
