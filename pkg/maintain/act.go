package maintain

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/notify"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

const (
	// lockBudget is how long a transaction of the agent should hold the store's lock. A transaction
	// performs a batch of steps.
	lockBudget = 2 * time.Millisecond
	// mirrorWait is how long a batch waits for host-local's lock while it holds the store's.
	mirrorWait = time.Millisecond
	// busyTries is the number of attempts of a batch if a lock is busy. Then the action that needs
	// the lock is left to the next survey.
	busyTries = 10
)

// ActResult is the result of Act.
type ActResult struct {
	// Taken are the indexes in the plan of the actions that were performed.
	Taken   []int
	Longest time.Duration // the longest time that the store's lock was held
}

// Act performs the actions of a plan. It skips those that are no longer due.
func (s *Service) Act(ctx context.Context, plan []Action) (ActResult, error) {
	performed := make([]bool, len(plan))
	out, err := s.inSteps(ctx, len(plan), func(c *transact.Call, i int) (err error) {
		performed[i], err = perform(c, plan[i])
		return err
	})
	out.Taken = slices.DeleteFunc(out.Taken, func(i int) bool { return !performed[i] })
	return out, err
}

// inSteps performs a number of steps, a few in each transaction, with pauses between transactions
// (see pace), so that a plugin waits for at most about lockBudget. take performs step i. It is
// called again for the same step if a transaction was rolled back.
//
// inSteps ends with the first step that fails; the steps before it are committed. It skips steps in
// a network whose host-local lock stays busy, and then returns ErrBusy at the end.
func (s *Service) inSteps(ctx context.Context, steps int, take func(c *transact.Call, i int) error) (ActResult, error) {
	var out ActResult
	var left error
	locked := map[lease.Pool]bool{}
	p := newPace()
	for at, end, tries := 0, steps, 0; at < steps; {
		n, worked, cost, err := s.someSteps(ctx, at, end, take, p.work())
		out.Longest = max(out.Longest, cost.Held)
		var busy *transact.BusyError
		switch {
		case err == nil:
			for range n {
				out.Taken = append(out.Taken, at)
				at++
			}
			end, tries = steps, 0
		case n > 0 && at+n < end:
			end = at + n // again, without the step that failed
		case errors.As(err, &busy) && (locked[busy.Pool] || tries == busyTries):
			left, locked[busy.Pool] = err, true
			at, end, tries = at+1, steps, 0
		case errors.Is(err, store.ErrBusy) && tries < busyTries:
			tries++
		default:
			return out, err
		}
		if at == steps {
			break
		}
		// The time for which this process waited for the lock counts as a part of the pause.
		if !notify.Wait(ctx, nil, p.after(worked, cost.Held)-cost.Waited) {
			return out, ctx.Err()
		}
	}
	return out, left
}

// someSteps performs steps in one transaction, from first up to end, until they have taken the time
// may, but at least one step. n is the number of steps that were performed. If one fails, n is the
// number of steps before it, and all are rolled back. worked is the time that the steps took, cost
// how long the lock was awaited and held.
func (s *Service) someSteps(ctx context.Context, first, end int, take func(*transact.Call, int) error,
	may time.Duration) (n int, worked time.Duration, cost store.Timing, err error) {
	asked, locked := time.Now(), time.Time{}
	err = s.Node.Update(ctx, transact.Scope{Wait: mirrorWait}, func(c *transact.Call) error {
		began := time.Now()
		locked = c.Tx.LockedAt()
		worked = 0
		for n = 0; first+n < end && (n == 0 || worked < may); n++ {
			if err := take(c, first+n); err != nil {
				return err
			}
			worked = time.Since(began)
		}
		return nil
	})
	if locked.IsZero() {
		return n, worked, store.Timing{Waited: time.Since(asked)}, err
	}
	return n, worked, store.Timing{Waited: locked.Sub(asked), Held: time.Since(locked)}, err
}

// perform performs one action of a plan if it is still due, and reports whether it was. It does not
// scan the processes of the node again, because that takes too long while the lock is held, and
// because a namespace that the survey has found dead cannot come back.
//
// For Repair it only reads the record, because every call repairs a damaged record that it reads.
func perform(c *transact.Call, a Action) (performed bool, err error) {
	switch a.Do {
	case Replay:
		return true, nil // every transaction begins by replaying spooled DELs
	case Adopt:
		return true, c.AdoptFile(a.Lease.Pool, a.Lease.Address)
	}
	l, err := c.Tx.Get(a.Lease.Pool, a.Lease.Address)
	if err != nil || a.Do == Repair || l.ID != a.Lease.ID || l.State != a.Lease.State || l.Holder != a.Lease.Holder {
		return a.Do == Repair, err
	}
	switch a.Do {
	case Release:
		if c.Evidence.QuickState(l) != lease.Alive || c.Evidence.IsReplaced(l) {
			_, err = c.End(l, lease.Orphan{LastHolder: a.Life}, c.Now, a.Reason)
		}
	case Expire:
		err = c.Expire([]lease.Lease{l})
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

// pace limits the effect of a long plan on plugins, which wait for the store's lock. The steps of a
// batch may take only a part of lockBudget, because opening the store and the commit take time as
// well. After a batch there is a pause, which is a multiple of the time for which the lock was
// held. The overhead of a batch is measured:
//
//   - If a commit takes longer than the budget, smaller batches would only mean more commits. The
//     steps of a batch then take half of the time of a commit.
//   - If a batch takes much longer, the process was not running while it held the lock, because of
//     the CPU quota of its cgroup or a busy node. Then the pauses get longer, so that more of the
//     quota is left when the next batch begins.
type pace struct {
	least time.Duration // the recent overhead of a batch
	rest  int           // the pause, as a multiple of the time that the lock was held
}

const (
	leastRest = 10
	mostRest  = 40
	longRest  = 200 * time.Millisecond // two periods of a cgroup's quota
	// slowDisk is the longest commit to which the size of batches is adapted.
	slowDisk = 20 * time.Millisecond
)

func newPace() *pace { return &pace{least: lockBudget / 2, rest: leastRest} }

// work returns how long the steps of the next batch may take.
func (p *pace) work() time.Duration {
	if p.least >= lockBudget {
		return min(p.least, slowDisk) / 2
	}
	return max((lockBudget-p.least)/2, lockBudget/8)
}

// after returns the length of the pause after a batch, from the time that its steps took and the
// time that it held the lock.
func (p *pace) after(worked, held time.Duration) time.Duration {
	beside := max(held-worked, 0)
	expected := max(lockBudget, 4*p.least)
	if held > expected {
		p.rest = min(p.rest*2, mostRest)
	} else {
		p.rest = max(p.rest*3/4, leastRest)
	}
	// least falls at once and rises slowly, because on a busy node most batches take longer.
	p.least = min(beside, p.least+p.least/32)
	// If the process was not running for a while, the batch has used no more CPU time than others.
	return min(time.Duration(p.rest)*min(held, expected), longRest)
}

// Replay replays the spooled DELs, if there are any. It returns ErrNoHostView if it is not proven
// that the process sees the host.
func (s *Service) Replay(ctx context.Context) error {
	spooled, err := s.Node.Store.Spooled("")
	if err != nil || len(spooled) == 0 {
		return err
	}
	// Every transaction begins with the replay.
	_, err = s.inSteps(ctx, 1, func(c *transact.Call, _ int) error { return c.ProveView() })
	return err
}
