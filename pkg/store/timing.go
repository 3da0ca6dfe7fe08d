package store

import "time"

// Timing is how long one Update or View waited for the store's lock, and how long it held the lock.
type Timing struct {
	Waited time.Duration // for the lock and, in a View, for its turn
	Held   time.Duration // from acquiring the lock until its release
}

// stopwatch measures one call.
type stopwatch struct {
	asked   time.Time
	granted time.Time // zero until the lock is acquired
}

// tell passes the timing to fn, which may be nil. It must be called after the lock was released, or
// was not acquired.
func (w *stopwatch) tell(fn func(Timing)) {
	switch {
	case fn == nil:
	case w.granted.IsZero():
		fn(Timing{Waited: time.Since(w.asked)})
	default:
		fn(Timing{Waited: w.granted.Sub(w.asked), Held: time.Since(w.granted)})
	}
}
