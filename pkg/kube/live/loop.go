package live

import (
	"context"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/signal"
)

// Loop calls pass at once, after every word from wake, and after the time that the last pass asked for (0 for none),
// until ctx is done. pace is the least time between two passes: what comes in a burst is one pass.
func Loop(ctx context.Context, pace time.Duration, wake <-chan struct{}, pass func(context.Context) (again time.Duration)) error {
	for {
		again := pass(ctx)
		if !sleep(ctx, nil, pace) {
			return ctx.Err()
		}
		if again == 0 {
			again = 24 * time.Hour
		}
		if !sleep(ctx, wake, again-pace) {
			return ctx.Err()
		}
	}
}

func sleep(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// Any merges channels of words into one.
func Any(ctx context.Context, from ...<-chan struct{}) <-chan struct{} {
	var merged signal.Signal
	out := merged.Subscribe()
	for _, c := range from {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case _, ok := <-c:
					if !ok {
						return
					}
					merged.Send()
				}
			}
		}()
	}
	return out
}
