package store

import (
	"context"
	"fmt"
	"io"
	"time"
)

// turn lets the readers of one process at the store one after the other, in
// periods that it leaves alone between. The kernel favours no writer: shared locks
// that overlap keep everybody's exclusive one out until the last of them is given
// back, and one that follows at once overtakes a writer that has to wake up first.
//
// Beside busy writers it is the lock that takes long to get. So a period is for
// all who wait for their turn, under one lock, as long as it is not too long.
type turn struct {
	free chan time.Time // has the time from which on the next period may begin
	next chan *period   // from one reader to another that waits; nothing stays in it
}

// period is a time under one lock.
type period struct {
	lock  io.Closer
	began time.Time
}

const (
	// longestPeriod is after how long nobody else is let in (DESIGN 4: 2 ms).
	longestPeriod = 2 * time.Millisecond
	leastRest     = time.Millisecond // longer than a writer takes to wake up
	mostRest      = 10 * time.Millisecond
)

func newTurn() turn {
	t := turn{make(chan time.Time, 1), make(chan *period)}
	t.free <- time.Time{}
	return t
}

// take waits for the turn. Who begins a period gets the lock for it. ErrBusy when
// ctx is done before.
func (t turn) take(ctx context.Context, acquire func() (io.Closer, error)) (*period, error) {
	p, err := t.wait(ctx)
	if p != nil || err != nil {
		return p, err
	}
	lock, err := acquire()
	if err != nil {
		t.rest(0)
		return nil, err
	}
	return &period{lock, time.Now()}, nil
}

// wait returns the period to go on with, nil where one is to begin.
func (t turn) wait(ctx context.Context) (*period, error) {
	if t.isFree() {
		return nil, nil
	}
	if until, ok := ctx.Deadline(); ok { // a patient context has no timer of its own
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	busy := fmt.Errorf("%w: this process reads it already", ErrBusy)
	select {
	case p := <-t.next:
		return p, nil
	case at := <-t.free:
		select {
		case <-time.After(time.Until(at)):
			return nil, nil
		case <-ctx.Done():
			t.free <- at
			return nil, busy
		}
	case <-ctx.Done():
		return nil, busy
	}
}

// isFree takes the turn where there is nothing to wait for: most processes read
// once, and an armed timer costs them a thread.
func (t turn) isFree() bool {
	select {
	case at := <-t.free:
		if time.Until(at) <= 0 {
			return true
		}
		t.free <- at
	default:
	}
	return false
}

// give passes the period on, or ends it: then follows a rest as long.
func (t turn) give(p *period) {
	if time.Since(p.began) < longestPeriod {
		select {
		case t.next <- p:
			return
		default: // nobody waits
		}
	}
	p.lock.Close()
	t.rest(time.Since(p.began))
}

func (t turn) rest(held time.Duration) {
	t.free <- time.Now().Add(min(max(held, leastRest), mostRest))
}
