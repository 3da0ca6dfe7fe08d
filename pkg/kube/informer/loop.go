package informer

import (
	"context"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// Loop calls pass at once, after each value from wake, and when the duration that the last pass
// returned has elapsed (0: do not requeue), until ctx is done. minInterval is the least time
// between two passes, so that a burst of changes causes one pass. It returns ctx.Err().
func Loop(
	ctx context.Context, minInterval time.Duration, wake <-chan struct{},
	pass func(context.Context) (requeueAfter time.Duration),
) error {
	for {
		requeueAfter := pass(ctx)
		if !notify.Wait(ctx, nil, minInterval) {
			return ctx.Err()
		}
		if requeueAfter == 0 {
			requeueAfter = 24 * time.Hour
		}
		if !notify.Wait(ctx, wake, requeueAfter-minInterval) {
			return ctx.Err()
		}
	}
}

// Any returns a channel that receives a value after each value from one of the channels, until ctx
// is done.
func Any(ctx context.Context, from ...<-chan struct{}) <-chan struct{} {
	var merged notify.Signal
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
