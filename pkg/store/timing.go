package store

import (
	"context"
	"time"
)

// Timing is how long one Update or View waited for the store's lock, and how long it held the lock.
type Timing struct {
	Waited time.Duration // for the lock and, in a View, for its turn
	Held   time.Duration // from acquiring the lock until its release
}

type timingKey struct{}

// WithTiming returns a context whose Updates and Views call tell after they have released the lock.
// A function of an outer WithTiming is called as well.
func WithTiming(ctx context.Context, tell func(Timing)) context.Context {
	if before, ok := ctx.Value(timingKey{}).(func(Timing)); ok {
		after := tell
		tell = func(t Timing) { before(t); after(t) }
	}
	return context.WithValue(ctx, timingKey{}, tell)
}

// stopwatch measures one call.
type stopwatch struct {
	tellTiming func(Timing) // may be nil
	asked      time.Time
	granted    time.Time // zero until the lock is acquired
}

func watch(ctx context.Context) *stopwatch {
	tell, _ := ctx.Value(timingKey{}).(func(Timing))
	return &stopwatch{tellTiming: tell, asked: time.Now()}
}

// tell reports the timing. It must be called after the lock was released, or was not acquired.
func (w *stopwatch) tell() {
	switch {
	case w.tellTiming == nil:
	case w.granted.IsZero():
		w.tellTiming(Timing{Waited: time.Since(w.asked)})
	default:
		w.tellTiming(Timing{Waited: w.granted.Sub(w.asked), Held: time.Since(w.granted)})
	}
}
