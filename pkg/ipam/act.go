package ipam

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

const (
	// rest is the pause after a step, as a multiple of the time that the lock was held, and
	// longestRest the longest one: two periods of the CPU quota of a cgroup.
	rest        = 3
	longestRest = 200 * time.Millisecond
	// busyWait is how long a step waits for a lock, and briefly how long the next ones do after
	// host-local's lock of a network was busy for that time.
	busyWait = time.Second
	briefly  = 20 * time.Millisecond
)

// Act performs the actions of a plan, and returns those. It skips the ones that are no longer due.
func (s *Service) Act(ctx context.Context, plan []Action) (done []Action, err error) {
	performed := make([]bool, len(plan))
	n, err := s.inSteps(ctx, len(plan), func(c *transact.Call, i int) (err error) {
		performed[i], err = perform(c, plan[i])
		return err
	})
	for _, i := range n {
		if performed[i] {
			done = append(done, plan[i])
		}
	}
	return done, err
}

// inSteps performs a number of steps, each in a transaction of its own, with pauses between, so
// that plugins do not wait long. take performs step i. inSteps returns the steps that were
// performed.
//
// inSteps ends with the first step that fails. But it skips steps in a network whose host-local
// lock is busy, and then returns ErrBusy at the end.
func (s *Service) inSteps(ctx context.Context, steps int,
	take func(c *transact.Call, i int) error) (taken []int, left error) {
	wait := busyWait
	for i := range steps {
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, wait)
		err := s.Node.Update(limited, transact.Scope{}, func(c *transact.Call) error {
			began = time.Now()
			return take(c, i)
		})
		cancel()
		var busy *transact.BusyError
		switch {
		case err == nil:
			taken = append(taken, i)
		case errors.As(err, &busy):
			left, wait = err, briefly
		default:
			return taken, err
		}
		if i < steps-1 {
			select {
			case <-ctx.Done():
				return taken, ctx.Err()
			case <-time.After(min(rest*time.Since(began), longestRest)):
			}
		}
	}
	return taken, left
}

// perform performs one action of a plan if it is still due, and reports whether it was. It does not
// scan the processes of the node again, because that takes too long while the lock is held, and
// because a namespace that the survey has found dead cannot come back.
//
// For Repair it only reads the record, because every call repairs a damaged record that it reads.
func perform(c *transact.Call, a Action) (performed bool, err error) {
	if a.Do == Adopt {
		return true, c.AdoptFile(a.Lease.Pool, a.Lease.Address)
	}
	l, err := c.Tx.Get(a.Lease.Pool, a.Lease.Address)
	if err != nil || a.Do == Repair || l.ID != a.Lease.ID || l.State != a.Lease.State || l.Holder != a.Lease.Holder {
		return a.Do == Repair, err
	}
	switch a.Do {
	case Release:
		if c.Evidence.QuickState(l) != lease.Alive || c.Evidence.IsReplaced(l) {
			_, err = c.End(l, lease.Release{Holder: l.Holder, Collected: true, LastHolder: a.Life}, c.Now, a.Reason)
		}
	case Expire:
		err = c.Collect([]lease.Lease{l})
	case Rebase:
		if next, e := lease.Apply(l, lease.Rebase{}, c.Now); e == nil {
			err = c.Put(l, next)
		}
	case Mirror:
		c.Evidence.SetProven(l.Holder, a.Life)
		err = c.Settle([]lease.Lease{l})
	}
	if err != nil {
		return false, err
	}
	next, err := c.Tx.Get(a.Lease.Pool, a.Lease.Address)
	return !reflect.DeepEqual(next, l), err
}

// Replay replays the spooled DELs, if there are any: Survey shows them as done. It returns
// ErrNoHostView if it is not proven that the process sees the host.
func (s *Service) Replay(ctx context.Context) error {
	spooled, err := s.Node.Store.Spooled("")
	if err != nil || len(spooled) == 0 {
		return err
	}
	// Every transaction begins with the replay.
	_, err = s.inSteps(ctx, 1, func(c *transact.Call, _ int) error { return c.ProveView() })
	return err
}
