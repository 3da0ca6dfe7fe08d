// Package holds ends the holds of pods that will not come back to this node, as far as the API knows: those that live on
// another node (DESIGN 6, moveGrace), and those that are kept forever for a number that a StatefulSet no longer has.
// Both must be seen to be so for minutes, by this process's own clock. A look that failed is none.
package holds

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/windows"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// MoveGrace is how long a pod is Ready on another node before this one lets its addresses go.
	MoveGrace = 5 * time.Minute
	// OwnerGrace is how long a StatefulSet has not had a number before what is kept for it forever goes.
	OwnerGrace = 10 * time.Minute
	// looks is how many looks make up a grace.
	looks = 5
)

// Holds is the task.
type Holds struct {
	Service *ipam.Service
	Node    string
	Clients *live.Clients
	Log     *slog.Logger
	// MoveGrace is in place of the constant of this name; for tests.
	MoveGrace time.Duration

	moved    streaks[sight]
	orphaned streaks[string]
	turn     live.Name // the last pod that was asked for by turns
}

// Run looks until ctx is done.
func (h *Holds) Run(ctx context.Context) error {
	period := h.begin()
	return live.Loop(ctx, period, nil, func(ctx context.Context) time.Duration {
		h.pass(ctx, time.Now())
		return period
	})
}

// begin forgets what was seen, and returns how often to look.
func (h *Holds) begin() (period time.Duration) {
	period = min(h.MoveGrace, OwnerGrace) / looks
	h.moved = streaks[sight]{gap: 3 * period}
	h.orphaned = streaks[string]{gap: 3 * period}
	return period
}

func (h *Holds) pass(ctx context.Context, now time.Time) {
	view, err := h.Service.Look(ctx, func(l lease.Lease) bool { return l.State == lease.Held && l.Firm })
	if err != nil {
		if !store.IsEmpty(err) {
			h.Log.Warn("holds are not looked at", "error", err)
		}
		return
	}
	held := windows.ByPod(view.Leases)
	h.letMovedGo(ctx, held, now)
	h.letOrphanedGo(ctx, held, now)
}

// sight is that a pod lives somewhere.
type sight struct {
	pod live.Name
	at  place
}

// letMovedGo ends the holds of pods that live elsewhere. The looks come from the server's memory, which may be old; the one
// that ends a hold does not.
func (h *Holds) letMovedGo(ctx context.Context, held map[live.Name][]lease.Lease, now time.Time) {
	claims, err := h.claims(ctx, held)
	if err != nil {
		h.Log.Debug("it is not known which pods have moved", "error", err)
		return
	}
	before := map[live.Name]sight{}
	for s := range h.moved.last {
		before[s.pod] = s
	}
	seen := map[sight]bool{}
	for _, pod := range h.suspects(held, claims, before) {
		at, err := h.elsewhere(ctx, pod, held[pod], claims[pod], recent)
		is := err == nil && at != place{}
		if is && h.moved.saw(sight{pod, at}, now) >= h.MoveGrace {
			var still place
			still, err = h.elsewhere(ctx, pod, held[pod], claims[pod], latest)
			if is = err == nil && still == at; is {
				h.end(ctx, held[pod], fmt.Sprintf("the pod has been Ready on node %s for %s", at.node, h.MoveGrace))
			}
		}
		switch {
		case err != nil:
			seen[before[pod]] = true // neither seen nor forgotten
			h.Log.Debug("it is not known whether a pod has moved", "pod", pod.String(), "error", err)
		case is:
			seen[sight{pod, at}] = true
		}
	}
	h.moved.forget(seen)
}

// letOrphanedGo ends the holds without end of pods whose StatefulSet does not want them.
func (h *Holds) letOrphanedGo(ctx context.Context, held map[live.Name][]lease.Lease, now time.Time) {
	seen := map[string]bool{}
	asked := map[string]answer{}
	for pod, leases := range held {
		set, ordinal, ok := endlessOf(leases, pod.Name)
		if !ok {
			continue
		}
		path := set.path(pod.Namespace)
		if _, ok := asked[path]; !ok {
			asked[path] = h.ask(ctx, path)
		}
		a := asked[path]
		key := pod.String()
		switch {
		case a.err != nil:
			seen[key] = true // neither seen nor forgotten
			h.Log.Debug("it is not known whether a StatefulSet wants its pod", "pod", key, "error", a.err)
		case !a.wants.Has(ordinal):
			seen[key] = true
			if h.orphaned.saw(key, now) >= OwnerGrace {
				h.end(ctx, leases, fmt.Sprintf("its StatefulSet has not had number %d for %s", ordinal, OwnerGrace))
			}
		}
	}
	h.orphaned.forget(seen)
}

func (h *Holds) end(ctx context.Context, leases []lease.Lease, reason string) {
	var refs []ipam.Ref
	for _, l := range leases {
		refs = append(refs, ipam.RefTo(l))
	}
	if err := h.Service.EndHolds(ctx, refs, reason); err != nil {
		h.Log.Warn("a hold cannot end yet", "error", err)
		return
	}
	for _, l := range leases {
		h.Log.Info("a hold has ended", "address", l.Address.String(), "pod", l.Namespace+"/"+l.Name, "reason", reason)
	}
}

// streaks tell for how long something has been seen without a gap.
type streaks[K comparable] struct {
	gap   time.Duration // longer than this unseen, and it begins anew
	first map[K]time.Time
	last  map[K]time.Time
}

// saw notes that it is so now, and returns for how long it has been.
func (s *streaks[K]) saw(k K, now time.Time) time.Duration {
	if s.first == nil {
		s.first, s.last = map[K]time.Time{}, map[K]time.Time{}
	}
	if last, ok := s.last[k]; !ok || now.Sub(last) > s.gap {
		s.first[k] = now
	}
	s.last[k] = now
	return now.Sub(s.first[k])
}

// forget drops all but these.
func (s *streaks[K]) forget(but map[K]bool) {
	for k := range s.last {
		if !but[k] {
			delete(s.first, k)
			delete(s.last, k)
		}
	}
}
