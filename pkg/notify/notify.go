// Package notify wakes tasks that wait for a change. A signal carries no data: the task reads what
// has changed itself.
package notify

import (
	"context"
	"sync"
	"time"
)

// Signal wakes any number of subscribers. Its zero value is ready to use.
type Signal struct {
	mu          sync.Mutex
	subscribers []chan struct{}
}

// Subscribe returns a channel that receives a value after each Send; several values that were not
// received are one. It is never closed.
func (s *Signal) Subscribe() <-chan struct{} {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, c)
	return c
}

// Send wakes all subscribers. It never blocks.
func (s *Signal) Send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.subscribers {
		select {
		case c <- struct{}{}:
		default: // it has a value that was not received yet
		}
	}
}

// Wait waits for d, or for a value from wake, which may be nil. It reports false if ctx is done.
func Wait(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
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
