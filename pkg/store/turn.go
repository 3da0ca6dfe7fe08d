package store

import (
	"context"
	"fmt"
	"time"
)

// turn lets the readers of one process at the store one after the other, and
// leaves it alone between two of them. The kernel favours no writer: shared locks
// that overlap keep everybody's exclusive one out until the last of them is given
// back, and one that follows at once overtakes a writer that has to wake up first.
//
// It is a channel with the time from which on the next may begin.
type turn chan time.Time

const (
	leastRest = time.Millisecond // longer than a writer takes to wake up
	mostRest  = 10 * time.Millisecond
)

func newTurn() turn {
	t := make(turn, 1)
	t <- time.Time{}
	return t
}

// take waits for the turn; ErrBusy when ctx is done before.
func (t turn) take(ctx context.Context) error {
	if t.isFree() {
		return nil
	}
	if until, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	busy := fmt.Errorf("%w: this process reads it already", ErrBusy)
	select {
	case at := <-t:
		select {
		case <-time.After(time.Until(at)):
			return nil
		case <-ctx.Done():
			t <- at
			return busy
		}
	case <-ctx.Done():
		return busy
	}
}

// isFree takes the turn where there is nothing to wait for: most processes read
// once, and an armed timer costs them a thread.
func (t turn) isFree() bool {
	select {
	case at := <-t:
		if time.Until(at) <= 0 {
			return true
		}
		t <- at
	default:
	}
	return false
}

// give passes it on, after a rest as long as the lock was held.
func (t turn) give(held time.Duration) {
	t <- time.Now().Add(min(max(held, leastRest), mostRest))
}
