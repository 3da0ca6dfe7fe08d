package store

import (
	"context"
	"fmt"
	"io"
	"time"
)

// readGate makes the Views of one process take turns, and leaves a pause after each period in which
// they have the shared lock. flock(2) does not prefer writers: with overlapping shared locks an
// exclusive lock waits until the last of them is released, and a reader that locks again at once is
// faster than a waiting writer, which has to wake up first.
//
// While writers are busy it takes long to acquire the lock. Therefore all Views that wait for their
// turn use the same shared lock, one after the other, for at most longestPeriod.
type readGate struct {
	free chan time.Time // contains the time at which the next period may start, if none is running
	next chan *period   // unbuffered, from a View that is done to one that waits
}

// period is the time in which the Views of a process have one shared lock.
type period struct {
	lock  io.Closer
	began time.Time
}

const (
	// longestPeriod is the time after which no other View joins a period. A writer waits for at
	// most this time and one View.
	longestPeriod = 2 * time.Millisecond
	leastRest     = time.Millisecond // longer than a writer needs to wake up
	mostRest      = 10 * time.Millisecond
)

func newReadGate() readGate {
	t := readGate{make(chan time.Time, 1), make(chan *period)}
	t.free <- time.Time{}
	return t
}

// take waits for the turn of a View and returns the period that it joins or, with a lock from
// acquire, starts. It returns ErrBusy if ctx is done before.
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

// wait waits for the turn. It returns the current period, or nil if the caller has to start one.
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

// isFree takes the turn if no period is running and the pause is over, and reports whether it did.
// It avoids a timer, which costs a thread, in processes that read only once.
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

// give ends the turn of a View. If the period is younger than longestPeriod and another View waits,
// that View goes on with the period. Otherwise give releases the shared lock, and the next period
// starts only after a pause, so that writers get the lock. give does not wait for the pause.
func (t readGate) give(p *period) {
	if time.Since(p.began) < longestPeriod {
		select {
		case t.next <- p:
			return
		default: // no View waits
		}
	}
	p.lock.Close()
	t.rest(time.Since(p.began))
}

// rest starts the pause after a period in which the lock was held for some time.
func (t readGate) rest(held time.Duration) {
	t.free <- time.Now().Add(min(max(held, leastRest), mostRest))
}
