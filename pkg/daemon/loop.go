package daemon

import (
	"context"
	"sync"
	"time"
)

// Signal wakes the tasks that wait for a change. It carries no data: a task reads what has changed
// itself. The zero value is ready to use.
type Signal struct {
	mu    sync.Mutex
	tasks []chan<- struct{}
}

// Any returns a channel that receives a value after each Send of any of the signals; several values
// that were not received are one. It is never closed.
func Any(signals ...*Signal) <-chan struct{} {
	c := make(chan struct{}, 1)
	for _, s := range signals {
		s.mu.Lock()
		s.tasks = append(s.tasks, c)
		s.mu.Unlock()
	}
	return c
}

// Send wakes all tasks. It never blocks.
func (s *Signal) Send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.tasks {
		select {
		case c <- struct{}{}:
		default: // it has a value that was not received yet
		}
	}
}

// Wait waits for d, or for a value from wake, which may be nil. It reports false if ctx is done.
func Wait(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-time.After(d):
	}
	return ctx.Err() == nil
}

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
		if !Wait(ctx, nil, minInterval) {
			return ctx.Err()
		}
		if requeueAfter == 0 {
			requeueAfter = 24 * time.Hour
		}
		if !Wait(ctx, wake, requeueAfter-minInterval) {
			return ctx.Err()
		}
	}
}
