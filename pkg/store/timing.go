package store

import (
	"context"
	"time"
)

// Timing is what one Update or View cost those who want the store as well.
type Timing struct {
	Waited time.Duration // for the lock, and for the turn of a View
	Held   time.Duration // of the lock: from its grant until it is given back
}

type timingKey struct{}

// Measured makes every Update and View under the context tell what it cost,
// after it has given the lock back or passed it on. Whoever asked before is told as well.
func Measured(ctx context.Context, tell func(Timing)) context.Context {
	if before, ok := ctx.Value(timingKey{}).(func(Timing)); ok {
		after := tell
		tell = func(t Timing) { before(t); after(t) }
	}
	return context.WithValue(ctx, timingKey{}, tell)
}

// stopwatch measures one call.
type stopwatch struct {
	told    func(Timing) // nil where nobody asks
	asked   time.Time
	granted time.Time // zero where it was not
}

func watch(ctx context.Context) *stopwatch {
	told, _ := ctx.Value(timingKey{}).(func(Timing))
	return &stopwatch{told: told, asked: time.Now()}
}

// tell is called when the lock is given back, or was not granted.
func (w *stopwatch) tell() {
	switch {
	case w.told == nil:
	case w.granted.IsZero():
		w.told(Timing{Waited: time.Since(w.asked)})
	default:
		w.told(Timing{Waited: w.granted.Sub(w.asked), Held: time.Since(w.granted)})
	}
}
