package store

import (
	"context"
	"fmt"
	"io"
	"time"
)

// readGate makes the readers of one process take turns, in periods with a pause between them.
// flock(2) does not prefer writers: overlapping shared locks keep an exclusive one waiting until
// the last of them is released, and a shared lock that follows at once overtakes a writer, which
// has to wake up first.
//
// If writers are busy it takes long to acquire the lock. So all readers that wait for their turn
// share one lock for a period, up to longestPeriod.
type readGate struct {
	free chan time.Time // contains the time at which the next period may start
	next chan *period   // unbuffered, from a reader to one that waits
}

// period is the time under one shared lock.
type period struct {
	lock  io.Closer
	began time.Time
}

const (
	// longestPeriod is the time after which no other reader joins a period: a writer waits for 2 ms
	// and the last reader.
	longestPeriod = 2 * time.Millisecond
	leastRest     = time.Millisecond // longer than a writer needs to wake up
	mostRest      = 10 * time.Millisecond
)

func newReadGate() readGate {
	t := readGate{make(chan time.Time, 1), make(chan *period)}
	t.free <- time.Time{}
	return t
}

// take waits for the turn. The first reader of a period acquires the lock for it. take returns
// ErrBusy if ctx is done before.
func (t readGate) take(ctx context.Context, acquire func() (io.Closer, error)) (*period, error) {
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

// wait returns the current period, nil if the caller has to start one.
func (t readGate) wait(ctx context.Context) (*period, error) {
	if t.isFree() {
		return nil, nil
	}
	if until, ok := ctx.Deadline(); ok { // see deadlineContext
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	busy := fmt.Errorf("%w: another reader of this process has the lock", ErrBusy)
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

// isFree takes the turn if it is free, and reports whether it was. Most processes read once, so
// that this avoids a timer, which costs a thread.
func (t readGate) isFree() bool {
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

// give passes the period to a waiting reader, or ends it. A pause of the same length follows.
func (t readGate) give(p *period) {
	if time.Since(p.began) < longestPeriod {
		select {
		case t.next <- p:
			return
		default: // no reader waits
		}
	}
	p.lock.Close()
	t.rest(time.Since(p.began))
}

func (t readGate) rest(held time.Duration) {
	t.free <- time.Now().Add(min(max(held, leastRest), mostRest))
}
