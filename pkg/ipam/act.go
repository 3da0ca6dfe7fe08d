package ipam

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// lockBudget is how long one batch may hold the lock (DESIGN 4).
	lockBudget = 2 * time.Millisecond
	// mirrorWait is how long it waits for host-local's lock meanwhile.
	mirrorWait = time.Millisecond
	// busyTries is how often a batch meets host-local's lock before the rest is
	// left to the next look.
	busyTries = 10
)

// Acted is what became of a plan.
type Acted struct {
	Done    int           // steps taken, those that were no longer due among them
	Longest time.Duration // that the lock was held
}

// Act takes the steps of a plan, each after a look whether it is still due, a
// few in one transaction and with pauses between them (see pace), so that no
// plugin waits for more than lockBudget.
func (s *Service) Act(ctx context.Context, plan []Action) (Acted, error) {
	var out Acted
	p := newPace()
	for busy := 0; len(plan) > 0; {
		n, held, err := s.actOnce(ctx, plan, p.work)
		out.Done += n
		out.Longest = max(out.Longest, held)
		plan = plan[n:]
		switch {
		case err == nil:
			busy = 0
		case errors.Is(err, store.ErrBusy) && ctx.Err() == nil && busy < busyTries:
			busy++
		default:
			return out, err
		}
		if len(plan) == 0 {
			break
		}
		if err := sleep(ctx, p.after(held)); err != nil {
			return out, err
		}
	}
	return out, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// actOnce takes steps for as long as work, at least one, and tells how many it
// were and how long the lock was held for them.
func (s *Service) actOnce(ctx context.Context, plan []Action, work time.Duration) (n int, held time.Duration, err error) {
	ctx = store.Measured(ctx, func(t store.Timing) { held = max(held, t.Held) })
	err = s.update(ctx, scope{wait: mirrorWait}, func(c *call) error {
		n = 0
		for began := time.Now(); n < len(plan) && (n == 0 || time.Since(began) < work); n++ {
			if err := c.perform(plan[n]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		n = 0
	}
	return n, held, err
}

// perform takes one step if it is still due. The proof of a death stays true:
// a namespace that has ended does not come back.
func (c *call) perform(a Action) error {
	if a.Do == Replay {
		return nil // the housekeeping of this very transaction has done it
	}
	l, err := c.tx.Get(a.Lease.Pool, a.Lease.Address)
	if err != nil || l.ID != a.Lease.ID || l.State != a.Lease.State || l.Holder != a.Lease.Holder {
		return err
	}
	switch a.Do {
	case Release:
		if c.look(l) != lease.Alive {
			_, err = c.orphan(l, lease.Dead, a.Reason)
		}
	case Expire:
		err = c.sweep([]lease.Lease{l})
	case Restart:
		if next, e := lease.Apply(l, lease.Rebase{}, c.now); e == nil {
			err = c.put(l, next)
		}
	case Mirror:
		err = c.heard([]lease.Lease{l})
	}
	return err
}

// pace keeps a long plan out of everybody's way. It works for less than half of
// the budget, for the commit takes its time too, and then rests for a multiple
// of the time that the lock was held: so it has the lock, and a processor, for
// a small share of the time only. Where a processor is withheld (a quota on the
// cgroup, a busy node) a batch takes much longer than it works; then the next
// ones are smaller, and further apart, so that the quota is whole when they begin.
type pace struct {
	work time.Duration
	rest int // as a multiple of the time the lock was held
}

const (
	mostWork  = lockBudget / 2
	leastWork = lockBudget / 16
	leastRest = 20
	mostRest  = 320
	longest   = time.Second
)

func newPace() *pace { return &pace{work: lockBudget / 4, rest: 2 * leastRest} }

// after learns from one batch, and says how long to rest.
func (p *pace) after(held time.Duration) time.Duration {
	if held > lockBudget {
		p.work, p.rest = max(p.work/2, leastWork), min(p.rest*2, mostRest)
	} else if held < lockBudget*3/4 {
		p.work, p.rest = min(p.work*9/8, mostWork), max(p.rest*15/16, leastRest)
	}
	return min(time.Duration(p.rest)*held, longest)
}
