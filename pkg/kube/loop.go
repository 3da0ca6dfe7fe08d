package kube

import (
	"context"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// Loop calls pass at once and then repeatedly until ctx is done. It calls pass again after a value
// from wake, or when the duration that the last pass returned has elapsed. If that duration is 0,
// Loop waits for wake, but at most for a day. minInterval is the least time between the end of a
// pass and the start of the next, so that a burst of changes causes one pass. Loop returns
// ctx.Err(). wake may be nil.
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

// Any returns a channel to which a value is sent after each value from any of the given channels.
// If the previous value was not received yet, no other is added. The channel is never closed. Any
// starts one goroutine for each given channel. The goroutine ends when ctx is done or its channel
// is closed.
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
