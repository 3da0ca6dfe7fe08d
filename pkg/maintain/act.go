package maintain

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
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

// ofAllSteps are the errors of the store or the host as a whole.
var ofAllSteps = []error{store.ErrBusy, store.ErrIO, store.ErrLost, store.ErrNewer, operation.ErrNoHostView}

// Act performs the actions of a plan, and returns those. It skips the ones that are no longer due.
func (s *Service) Act(ctx context.Context, plan []Action) ([]Action, error) {
	return inSteps(ctx, s, plan, perform)
}

// inSteps takes a step for each item, in a transaction of its own, with pauses between, so that
// plugins do not wait long. It returns the items for which take has reported that it has changed
// something.
//
// A step that fails, because its record is damaged or host-local's lock of its network is busy,
// keeps no other one from being taken: inSteps returns its error at the end. It ends at once with
// an error that the next steps would have, too.
func inSteps[T any](ctx context.Context, s *Service, items []T,
	take func(*operation.Call, T) (changed bool, err error)) (done []T, left error) {
	wait := busyWait
	for i, item := range items {
		began, changed, in := time.Now(), false, operation.Scope{}
		if a, ok := any(item).(Action); ok {
			in = a.scope
		}
		limited, cancel := context.WithTimeout(ctx, wait)
		err := s.Node.Update(limited, in, func(c *operation.Call) (err error) {
			began = time.Now()
			changed, err = take(c, item)
			return err
		})
		cancel()
		var busy *operation.BusyError
		switch {
		case err == nil && changed:
			done = append(done, item)
		case errors.As(err, &busy):
			wait = briefly
		case ctx.Err() != nil || slices.ContainsFunc(ofAllSteps, func(of error) bool { return errors.Is(err, of) }):
			return done, err
		}
		left = cmp.Or(left, err)
		if i < len(items)-1 {
			select {
			case <-ctx.Done():
				return done, ctx.Err()
			case <-time.After(min(rest*time.Since(began), longestRest)):
			}
		}
	}
	return done, left
}

// perform performs one action of a plan if it is still due, and reports whether it was. It does not
// scan the processes of the node again, because that takes too long while the lock is held, and
// because a namespace that the survey has found dead cannot come back.
//
// For Repair it only reads the record, because every call repairs a damaged record that it reads.
func perform(c *operation.Call, a Action) (performed bool, err error) {
	if a.Do == Import {
		return c.ImportAlive(a.Lease.Pool, a.Lease.Address)
	}
	l, err := c.Tx.Get(a.Lease.Pool, a.Lease.Address)
	if err != nil || a.Do == Repair || l.ID != a.Lease.ID || l.State != a.Lease.State || l.Holder != a.Lease.Holder {
		return a.Do == Repair, err
	}
	switch a.Do {
	case Release:
		c.Evidence.SetProven(l.Holder, a.Life)
		if c.Evidence.QuickState(l) != lease.Alive || c.Evidence.IsReplaced(l) {
			_, err = c.End(l, lease.Release{Holder: l.Holder, Collected: true, LastHolder: a.Life}, c.Now, a.Reason)
		}
	case Expire:
		err = c.Collect([]lease.Lease{l})
	case Rebase:
		_, _, err = c.Change(l, lease.Rebase{})
	case WriteFile:
		c.Evidence.SetProven(l.Holder, a.Life)
		err = c.WriteMissing(l)
	}
	if err != nil {
		return false, err
	}
	next, err := c.Tx.Get(a.Lease.Pool, a.Lease.Address)
	return !reflect.DeepEqual(next, l), err
}

// ApplyQueue applies the queued DELs, if there are any: Survey shows them as done. It returns
// ErrNoHostView if it is not proven that the process sees the host.
func (s *Service) ApplyQueue(ctx context.Context) error {
	queued, err := s.Node.Store.Run().QueuedDELs("")
	if err != nil || len(queued) == 0 {
		return err
	}
	// Every transaction begins with that.
	_, err = inSteps(ctx, s, []bool{true}, func(c *operation.Call, _ bool) (bool, error) { return true, c.ProveView() })
	return err
}
