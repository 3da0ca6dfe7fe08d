package maintain

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/notify"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

const (
	// lockBudget is how long one batch may hold the store's lock.
	lockBudget = 2 * time.Millisecond
	// mirrorWait is how long it waits for host-local's lock while it holds the
	// store's, which every plugin waits for.
	mirrorWait = time.Millisecond
	// busyTries is how often a batch meets a busy lock before the step that needs it
	// is left to the next survey.
	busyTries = 10
)

// ActResult is what became of a plan.
type ActResult struct {
	// Taken are the places in the plan of the steps that were taken, those that were
	// no longer due among them.
	Taken   []int
	Longest time.Duration // that the store's lock was held
}

// Act takes the steps of a plan, each after a check whether it is still due.
func (s *Service) Act(ctx context.Context, plan []Action) (ActResult, error) {
	return s.inSteps(ctx, len(plan), func(c *transact.Call, i int) error { return perform(c, plan[i]) })
}

// inSteps takes so many steps, a few in one transaction and with pauses between
// them (see pace), so that no plugin waits for more than lockBudget. A step is
// in one transaction whole, and may be taken again in another: it looks at what
// is there. The first that fails ends it; those before it are taken. But steps of
// a network whose files stay locked end nothing: the others are taken, and the
// error is an ErrBusy.
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
			end = at + n // once more, without the one that fails
		case ctx.Err() != nil:
			return out, err
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
		// Waiting for the lock was a rest as well.
		if !notify.Wait(ctx, nil, p.after(worked, cost.Held)-cost.Waited) {
			return out, ctx.Err()
		}
	}
	return out, left
}

// someSteps takes steps from the first on for as long as it may work, at least
// one. It tells how many they were (those before one that fails, which are
// undone), how long that took and what it cost of the lock.
func (s *Service) someSteps(ctx context.Context, first, end int, take func(*transact.Call, int) error,
	may time.Duration) (n int, worked time.Duration, cost store.Timing, err error) {
	ctx = store.WithTiming(ctx, func(t store.Timing) {
		cost.Held, cost.Waited = max(cost.Held, t.Held), cost.Waited+t.Waited
	})
	err = s.Update(ctx, transact.Scope{Wait: mirrorWait}, func(c *transact.Call) error {
		began := time.Now()
		worked = 0
		for n = 0; first+n < end && (n == 0 || worked < may); n++ {
			if err := take(c, first+n); err != nil {
				return err
			}
			worked = time.Since(began)
		}
		return nil
	})
	return n, worked, cost, err
}

// perform takes one step if it is still due. What the survey has proven of the
// holder is not proven again: here, with the lock in hand, it would be by less.
// A death stays true, for a namespace that has ended does not come back.
//
// A damaged record is repaired by the call that reads it (update): Repair does no more.
func perform(c *transact.Call, a Action) error {
	if a.Do == Replay {
		return nil // the housekeeping of this very transaction has done it
	}
	l, err := c.Tx.Get(a.Lease.Pool, a.Lease.Address)
	if err != nil || l.ID != a.Lease.ID || l.State != a.Lease.State || l.Holder != a.Lease.Holder {
		return err
	}
	switch a.Do {
	case Release:
		if c.Look(l) != lease.Alive || c.IsMadeAnew(l) {
			_, err = c.Orphan(l, a.Life, a.Reason)
		}
	case Expire:
		err = c.Expire([]lease.Lease{l})
	case Rebase:
		if next, e := lease.Apply(l, lease.Rebase{}, c.Now); e == nil {
			err = c.Put(l, next)
		}
	case Mirror:
		c.SetProven(l.Holder, a.Life)
		err = c.ReleaseUnmirrored([]lease.Lease{l})
	}
	return err
}

// pace keeps a long plan out of everybody's way: a batch works for a part of the
// budget, for opening and the commit take their time too, and after it the lock
// and the processor are left alone for a multiple of the time that the lock was
// held. What a batch costs at least, beside its work, is learnt from those before:
//
//   - Where the disk alone takes more than the budget, smaller batches would
//     only be more commits. They work for half of what a commit takes.
//   - A batch that takes much longer was kept from the processor with
//     the lock in hand (a quota on the cgroup, a busy node). It ends as soon as it
//     has the processor again, and the next ones are further apart, so that the
//     quota is whole when they begin.
type pace struct {
	least time.Duration // that a batch costs beside its work, as of late
	rest  int           // as a multiple of the time that the lock was held
}

const (
	leastRest = 10
	mostRest  = 40
	longRest  = 200 * time.Millisecond // two periods of a quota
	// slowDisk is the longest commit that batches are fitted to.
	slowDisk = 20 * time.Millisecond
)

func newPace() *pace { return &pace{least: lockBudget / 2, rest: leastRest} }

// work is how long the next batch may work.
func (p *pace) work() time.Duration {
	if p.least >= lockBudget {
		return min(p.least, slowDisk) / 2
	}
	return max((lockBudget-p.least)/2, lockBudget/8)
}

// after learns from a batch that worked for some time and held the lock for
// some more, and says how long to leave the lock alone.
func (p *pace) after(worked, held time.Duration) time.Duration {
	beside := max(held-worked, 0)
	expected := max(lockBudget, 4*p.least)
	if held > expected {
		p.rest = min(p.rest*2, mostRest)
	} else {
		p.rest = max(p.rest*3/4, leastRest)
	}
	// Down at once and up slowly: where processors are scarce most take longer.
	p.least = min(beside, p.least+p.least/32)
	// A batch that was held up has used no more of the processor than others.
	return min(time.Duration(p.rest)*min(held, expected), longRest)
}
