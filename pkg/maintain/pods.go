package maintain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The agent watches the pods of the node (docs/design.md, "What it does with the API"). The
// following methods apply what it sees to the leases. They read the leases again in each
// transaction, and handle one pod in a step (see inSteps), so that plugins do not wait long.

// PodWindow is the window of a pod's annotation.
type PodWindow struct {
	Namespace, Name string
	lease.SetWindow // without Limited
	// WhyCut says why Window is shorter than the annotation asks for; "" if it is not.
	WhyCut string
}

// Follow applies the annotations of pods, and returns the pods of the leases that it has changed.
// It sets the window and the reservation name of the leases that have the UID of a pod.
func (s *Service) Follow(ctx context.Context, pods []PodWindow) (followed []PodWindow, err error) {
	return inSteps(ctx, s, pods, func(c *operation.Call, p PodWindow) (changed bool, err error) {
		leases, err := c.Tx.ByPod(p.Namespace, p.Name)
		for _, l := range leases {
			isSet, e := setWindow(c, l, p)
			changed, err = changed || isSet, cmp.Or(err, e)
		}
		return changed, err
	})
}

// Changes reports whether an event that depends on no time, as those of Follow and MarkLeaving,
// would change a lease.
func Changes(l lease.Lease, e lease.Event) bool {
	next, err := lease.Apply(l, e, lease.Instant{})
	return err == nil && !reflect.DeepEqual(next, l)
}

func setWindow(c *operation.Call, l lease.Lease, p PodWindow) (changed bool, err error) {
	limit := ""
	if l.State == lease.Held && !l.IsHold {
		limit = c.HoldLimit(l)
	}
	p.SetWindow.Limited = limit != ""
	next, changed, err := c.Change(l, p.SetWindow)
	switch {
	case err != nil, next.Window == l.Window: // at most who it belongs to has changed
	case limit != "" && next.Window > 0:
		err = c.LogLimit(l, limit)
	case p.WhyCut != "":
		err = c.Log(l, store.EventLimited, p.WhyCut)
	case next.Window < p.Window:
		err = c.Log(l, store.EventLimited, fmt.Sprintf("the window of %s is cut to %s", p.Window, next.Window))
	}
	return changed, err
}

// SetLimits stores the limits of namespaces, with which the plugin and the agent limit windows and
// holds. If they are the same as before, it writes nothing. A store that was never used is created,
// because the first ADD and the first requested address depend on the limits.
func (s *Service) SetLimits(ctx context.Context, limits policy.Limits) error {
	same := len(limits) == 0
	err := s.Node.Store.View(ctx, func(tx *store.Tx) error {
		same = maps.Equal(limits, tx.Limits())
		return nil
	})
	if err != nil || same {
		return err
	}
	return s.Node.Update(ctx, operation.Scope{}, func(c *operation.Call) error { return c.Tx.SetLimits(limits) })
}

// Defer extends holds (lease.Lease.IsHold), so that each lasts for at least rest from now. The
// caller names those for which a pod waits: it is scheduled to this node and has no sandbox yet.
// Defer never shortens a hold, and ignores those that have ended or were claimed meanwhile. It
// returns the holds that it has extended.
func (s *Service) Defer(ctx context.Context, holds []Ref, rest time.Duration) (extended []Ref, err error) {
	return inSteps(ctx, s, holds, func(c *operation.Call, r Ref) (extended bool, err error) {
		l, err := c.Tx.Get(r.Pool, r.Address)
		if err != nil || l.ID != r.ID {
			return false, err
		}
		_, extended, err = c.Change(l, lease.Defer{Rest: rest})
		return extended, err
	})
}

// Ref identifies one lease. It does not match a later lease of the same address, which has another
// ID.
type Ref struct {
	Pool    lease.Pool
	Address netip.Addr
	ID      string
}

// RefTo returns the Ref of a lease.
func RefTo(l lease.Lease) Ref { return Ref{l.Pool, l.Address, l.ID} }

// RevokePods ends the retention of leases, and returns those whose retention it has ended. pods has
// the leases of each pod, which are changed in one transaction. A hold ends at once, unless an
// interface of its last holder still has the address. A bound lease loses its key: it stays bound
// until its release, and is not held after that.
//
// RevokePods returns ErrNoHostView if it is not proven that the process sees the host, because
// living sandboxes could seem to be gone.
func (s *Service) RevokePods(ctx context.Context, pods [][]Ref, reason string) (ended []Ref, err error) {
	return s.endPods(ctx, pods, reason, lease.Bound, lease.Held)
}

// EndHolds ends holds, as RevokePods does. It does not change bound leases.
func (s *Service) EndHolds(ctx context.Context, pods [][]Ref, reason string) (ended []Ref, err error) {
	return s.endPods(ctx, pods, reason, lease.Held)
}

// endPods is RevokePods for the leases that have one of the states.
func (s *Service) endPods(ctx context.Context, pods [][]Ref, reason string, states ...lease.State) ([]Ref, error) {
	ended := map[Ref]bool{}
	done, err := inSteps(ctx, s, pods, func(c *operation.Call, pod []Ref) (bool, error) {
		if err := c.ProveView(); err != nil {
			return false, err
		}
		for _, r := range pod {
			l, err := c.Tx.Get(r.Pool, r.Address)
			if err != nil {
				return false, err
			}
			if ended[r] = l.ID == r.ID && !l.Key().IsZero() && slices.Contains(states, l.State); !ended[r] {
				continue
			}
			last := lease.Unknown // of a bound lease: the proof takes long, and the survey has it
			if l.State == lease.Held {
				last = c.Evidence.Last(l)
			}
			if _, err := c.End(l, lease.Revoke{LastHolder: last, KeepBound: true}, c.Now, reason); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	return slices.DeleteFunc(slices.Concat(done...), func(r Ref) bool { return !ended[r] }), err
}

// NodeView is the content of the store that the agent publishes.
type NodeView struct {
	Leases []lease.Lease
	Limits policy.Limits // of namespaces
	Now    lease.Instant // when it was read
	Lost   bool          // the store replaced a lost one, see Imported
	// NamedPods are the records that NamePods has written and that are still needed, and when it
	// has; nil if the store was never used.
	NamedPods map[store.NamedPod]time.Time

	Damaged []lease.Lease // pool and address of records that cannot be read

	imported   map[lease.Pool]bool     // see store.Tx.Imported
	caches     map[lease.Pool][]string // see store.Tx.CacheDirs
	namespaces string                  // see store.Tx.NamespaceIDs
}

// Imported reports whether the store knows all leases of a network. If not, the store was lost, or
// was missing when the node booted, and no ADD has used the network since: the pods of the network
// may have addresses for which Leases has no lease.
func (v NodeView) Imported(network string) (known bool) {
	for p, isImported := range v.imported {
		if p.Network == network && !isImported {
			return false
		}
		known = known || p.Network == network
	}
	return known
}

// List returns the leases that match selects, as they are at one time.
func (s *Service) List(ctx context.Context, match func(lease.Lease) bool) (v NodeView, err error) {
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error {
		v = NodeView{imported: map[lease.Pool]bool{}, caches: map[lease.Pool][]string{},
			namespaces: tx.NamespaceIDs(), Limits: tx.Limits(), NamedPods: maps.Collect(tx.NamedPods()),
			Lost: tx.Lost() != ""}
		for _, p := range tx.Pools() {
			v.imported[p], v.caches[p] = tx.Imported(p), tx.CacheDirs(p)
		}
		for l, err := range tx.All {
			switch {
			case err != nil:
				v.Damaged = append(v.Damaged, l)
			case match(l):
				v.Leases = append(v.Leases, l)
			}
		}
		return nil
	})
	v.Now = s.Node.Clock()
	return v, err
}

// Bound returns the bound leases of an attachment in all pools, for the announcer.
func (s *Service) Bound(ctx context.Context, who lease.Attachment) (leases []lease.Lease, err error) {
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error {
		leases, err = tx.ByHolder(who.ContainerID, who.IfName)
		return err
	})
	return leases, err
}

// Journal returns the journal's entries after the sequence number after, and the number of the last
// entry. If the store was replaced and its journal is shorter, Journal starts with the first entry.
func (s *Service) Journal(ctx context.Context, after uint64) (entries []store.Entry, last uint64, err error) {
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error {
		entries, last = nil, tx.JournalEnd()
		if last < after {
			after = 0
		}
		for _, n := range tx.Entries(after) {
			entries = append(entries, n)
		}
		return nil
	})
	return entries, last, err
}
