package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// chooseAll picks an address of each range set (choose). If one has no address for the pod, it
// returns the reason, and picks has what the pod would get of the others.
func (a *assignment) chooseAll() (refused error) {
	mine, former := a.bySet(a.mine), a.bySet(a.former)
	requested, others := a.requestedBySet()
	for i, set := range a.req.Sets {
		p, err := a.choose(set, requested[i], mine[i], former[i])
		if isRefusal(err) {
			refused = cmp.Or(refused, err)
			continue
		}
		if err != nil {
			return err
		}
		p.set = set
		if p.event != "" {
			p.next.HeldLimit = heldLimit(set, a.req.Options.MaxHeldShare)
		}
		a.picks = append(a.picks, p)
	}
	if len(others) > 0 {
		refused = cmp.Or(refused, fmt.Errorf("%w: %s", ErrRequest, strings.Join(others, " ")))
	}
	return refused
}

// requestedBySet returns the requested address of each range set, by its index, and the other
// requested addresses: those outside of all sets, and all but the first of one set.
func (a *assignment) requestedBySet() (bySet map[int]netip.Addr, others []string) {
	bySet = map[int]netip.Addr{}
	for _, r := range a.req.Requested {
		i := pool.SetOf(a.req.Sets, r)
		if i < 0 || bySet[i].IsValid() {
			others = append(others, r.String())
			continue
		}
		bySet[i] = r
	}
	return bySet, others
}

// own returns the lease of the container that a call with this requested address repeats: its own
// lease of that address or, if none is requested, the one that was bound last.
func own(mine []lease.Lease, requested netip.Addr) (l lease.Lease, found bool) {
	for _, m := range mine {
		asked := !requested.IsValid() || m.Address == requested
		if asked && (!found || lastBoundFirst(m, l) < 0) {
			l, found = m, true
		}
	}
	return l, found
}

// choose picks an address of one range set, in this order of preference: the address that is bound
// to the container, unless another is requested; the requested one, one of the pod's former leases
// (chooseFormer), the next free one, one whose hold yields. mine and former are the leases of the
// assignment that are in the set. requested is the zero address if none was requested.
func (a *assignment) choose(set pool.Set, requested netip.Addr, mine, former []lease.Lease) (p pick, err error) {
	if l, found := own(mine, requested); found {
		p.old = l
		p.next, err = lease.Apply(l, a.bind(l, l.Address, set.ID()), a.call.Now)
		if !l.HasPod() && p.next.HasPod() {
			p.event, p.reason = store.EventImported, "host-local has given it to the container"
			a.former = append(a.former, mine...) // the pod keeps this one
		}
		return p, err
	}
	if requested.IsValid() {
		p, err := a.chooseRequested(set, requested)
		if err == nil && len(mine) > 0 { // host-local gives the container both
			a.former = append(a.former, mine...) // the pod keeps the requested one
			a.notes = append(a.notes, fmt.Sprintf("container %s has %s, and gets %s as well, as requested; its DEL "+
				"releases both", a.req.ContainerID, mine[0].Address, requested))
		}
		return p, err
	}
	if p, found, err := a.chooseFormer(set, former); found || err != nil {
		return p, err
	}
	return a.chooseFresh(set)
}

// chooseFormer picks the address of one of the pod's former leases, and reports whether there is
// one. What it does next depends on why claim refuses a lease:
//
//	claim's error            retained for the pod    held for its name       any other
//	the file is unreadable   return it               the next; if none can   the next
//	                                                 be had, return it
//	lease.ErrTaken           the next                the next                the next
//	lease.ErrHolderAlive     return it               the next                the next
//	any other                return it               return it               return it
//
// So a pod gets no other address while it may still get its own. Of a name, another one may be
// free, and waitForName has waited.
func (a *assignment) chooseFormer(set pool.Set, former []lease.Lease) (p pick, found bool, err error) {
	var unread error
	for _, l := range former {
		if !set.Usable(l.Address) {
			continue
		}
		p, err := a.claim(l, set)
		isUnread, isAlive := errors.Is(err, importer.ErrUnreadable), errors.Is(err, lease.ErrHolderAlive)
		switch {
		case err == nil:
			return p, true, nil
		case isUnread && l.IsHold && a.isNamed():
			unread = err
		case (isUnread || isAlive) && l.IsRetained() && !a.isNamed():
			return pick{}, false, err
		case !isAlive && !errors.Is(err, lease.ErrTaken):
			return pick{}, false, err
		}
	}
	return pick{}, false, unread
}

// claim picks the address of a lease for the pod, if host-local's file of the address and the state
// of the lease allow it: the lease is held for the pod, or bound to its key and the holder is dead.
func (a *assignment) claim(l lease.Lease, set pool.Set) (pick, error) {
	if err := a.call.MayGive(l); err != nil {
		return pick{}, err
	}
	next, err := lease.Apply(l, a.bind(l, l.Address, set.ID()), a.call.Now)
	p := pick{old: l, next: next, event: store.EventKept}
	switch {
	case l.State == lease.Bound:
		p.event, p.reason = store.EventTakenOver, "from container "+l.Holder.ContainerID+", whose sandbox is gone"
	case l.UID == "" && l.Holder.ContainerID == "":
		p.reason = "it was reserved for the pod"
	default:
		p.reason = "after " + a.call.Now.Since(l.ReleasedAt).Round(time.Second).String()
	}
	return p, err
}

// chooseRequested picks a requested address. It returns ErrUnavailable if another pod has the
// address.
func (a *assignment) chooseRequested(set pool.Set, addr netip.Addr) (pick, error) {
	if !set.Usable(addr) {
		return pick{}, fmt.Errorf("%w: %s is subnet's gateway", ErrRequest, addr)
	}
	at := lease.Place{Pool: a.req.Pool, Address: addr}
	l, _, err := a.call.Present(at)
	if err != nil {
		return pick{}, err
	}
	if a.call.IsElsewhere(a.req.Pool, addr) {
		return pick{}, fmt.Errorf("%w: %s in range set %s belongs to a container by an earlier dataDir", ErrUnavailable,
			addr, set)
	}
	if l.State == lease.Bound && l.Holder.Is(a.holder) && !a.searched {
		return pick{}, errNotSearched
	}
	if l.State != lease.None {
		if p, err := a.claim(l, set); err == nil || errors.Is(err, store.ErrBusy) {
			return p, err
		}
		// On a node without an agent nothing else finds out that the holder is dead.
		if l, err = a.call.CollectAt(at); err != nil {
			return pick{}, err
		}
	}
	if l.State == lease.None {
		return a.fresh(set, addr, l)
	}
	// A cool-down yields to a request, because the pod needs this address.
	if _, err := lease.Apply(l, a.yield(l, false), a.call.Now); err == nil && a.call.MayGive(l) == nil {
		return a.fresh(set, addr, l)
	}
	return pick{}, fmt.Errorf("%w: %s in range set %s %s", ErrUnavailable, addr, set,
		l.Describe(a.req.Pod.Namespace, a.call.Now))
}

// fresh picks an address that has no lease, or one whose hold (old) yields.
func (a *assignment) fresh(set pool.Set, addr netip.Addr, old lease.Lease) (pick, error) {
	next, err := lease.Apply(lease.Lease{}, a.bind(lease.Lease{}, addr, set.ID()), a.call.Now)
	return pick{old: old, next: next, event: store.EventBound}, err
}

// chooseFresh picks the next free address of a set. If there is none, it frees addresses: those of
// holds that are over and of dead holders. Then it takes one whose hold yields. It returns
// ErrExhausted if that fails, too.
func (a *assignment) chooseFresh(set pool.Set) (pick, error) {
	if p, ok, err := a.next(set); ok || err != nil {
		return p, err
	}
	in := a.holdsIn(set)
	if err := a.call.Collect(in.held); err != nil {
		return pick{}, err
	}
	scanned, err := a.collectPool()
	if err != nil {
		return pick{}, err
	}
	if p, ok, err := a.next(set); ok || err != nil {
		return p, err
	}
	if scanned || slices.ContainsFunc(in.held, func(l lease.Lease) bool { return l.Lapsed(a.call.Now) }) {
		in = a.holdsIn(set)
	}
	if p, ok, err := a.takeHold(set, in.held); ok || err != nil {
		return p, err
	}
	if in.damaged != nil && !a.call.Repaired {
		return pick{}, in.damaged // the call makes another attempt: the address may be free
	}
	return pick{}, a.exhausted(set, in)
}

// inUse are the leases of a range set, which are read once for all that is done when it is full.
type inUse struct {
	held    []lease.Lease
	bound   int
	damaged error // a record cannot be read
}

func (a *assignment) holdsIn(set pool.Set) (in inUse) {
	usable := set.UsableFunc()
	for _, r := range set {
		held, bound, err := a.call.Tx.HoldsIn(a.req.Pool, r.Start, r.End, usable)
		in.held, in.bound, in.damaged = append(in.held, held...), in.bound+bound, cmp.Or(in.damaged, err)
	}
	return in
}

// maxDead is the largest number of files of dead containers that an ADD passes over.
const maxDead = 100

// next picks the next address of a set that has neither a lease nor a file of host-local, and
// reports whether there is one. It makes leases of the addresses that host-local has given. The
// address of a dead container, whose DEL may still come, is the last choice.
func (a *assignment) next(set pool.Set) (p pick, found bool, err error) {
	var last netip.Addr
	dead := 0
	addr, found := set.Next(a.call.Tx.Cursor(a.req.Pool, set.ID()), func(lo, hi netip.Addr) (netip.Addr, bool) {
		for addr, ok := a.call.Tx.Free(a.req.Pool, lo, hi); ok; addr, ok = a.call.Tx.Free(a.req.Pool, addr.Next(), hi) {
			var isFree, wasDead bool
			if isFree, wasDead, err = a.isFree(addr); isFree || err != nil {
				return addr, true
			}
			if wasDead {
				dead++
				last = cmp.Or(last, addr)
			}
			if dead == maxDead {
				return last, true
			}
		}
		return netip.Addr{}, false
	})
	if !found {
		addr = last
	}
	if err != nil || !addr.IsValid() {
		return pick{}, false, err
	}
	p, err = a.fresh(set, addr, lease.Lease{})
	return p, true, err
}

// isFree reports whether the address can be assigned, which the bitmaps of the store show as free.
// Otherwise wasDead reports whether it was that of a dead container.
func (a *assignment) isFree(addr netip.Addr) (isFree, wasDead bool, err error) {
	l, err := a.call.Tx.Get(a.req.Pool, addr)
	if err != nil || l.State != lease.None {
		return false, false, errors.Join(err, fmt.Errorf("%w: %s has one, and an index says that it is free",
			store.ErrDamaged, addr))
	}
	l, wasDead, err = a.call.Present(lease.Place{Pool: a.req.Pool, Address: addr})
	inUse := l.State != lease.None
	if err == nil && inUse { // it has a lease now, which the next attempt finds
		err = a.call.Step()
	}
	if l.Holder.Is(a.holder) && !a.searched {
		err = errNotSearched
	}
	if inUse || err != nil || a.call.IsElsewhere(a.req.Pool, addr) || a.call.IsHeldElsewhere(a.req.Pool, addr) {
		return false, false, err
	}
	return !wasDead, wasDead, nil
}

// lookEvery is the shortest time between two looks at a pool because it is full: each lists
// host-local's directory, and scans all processes.
const lookEvery = 5 * time.Second

// collectPool releases, at most once every lookEvery, the leases of the whole pool whose DEL
// host-local has served and those of dead holders, because the other range sets of this call or of
// another configuration may be full as well. The pod's own former leases are left for it to take
// over.
func (a *assignment) collectPool() (scanned bool, err error) {
	last := a.call.Tx.LastFullScan(a.req.Pool)
	if !last.IsZero() && last.BootID == a.call.Now.BootID && a.call.Now.Since(last) < lookEvery {
		return false, nil
	}
	others := func() []lease.Lease {
		return slices.DeleteFunc(a.call.Tx.InPool(a.req.Pool), func(l lease.Lease) bool {
			return slices.ContainsFunc(a.former, func(f lease.Lease) bool { return f.Address == l.Address })
		})
	}
	err = a.call.CompareFiles(hostlocal.Missing(others()))
	if err == nil {
		err = a.call.Collect(others())
	}
	if err == nil {
		err = a.call.Tx.SetLastFullScan(a.req.Pool, a.call.Now)
	}
	return true, err
}

// yield returns the event that ends a cool-down of another pod, or with holds a hold.
func (a *assignment) yield(l lease.Lease, holds bool) lease.Yield {
	return lease.Yield{LastHolder: a.call.Evidence.Last(l), Holds: holds}
}

// takeHold picks the address of a hold that yields because the range set is exhausted: the oldest
// cool-down; if there is none, the hold with the earliest end of those that the policy
// onExhaustion allows. It reports whether there is one.
func (a *assignment) takeHold(set pool.Set, held []lease.Lease) (p pick, found bool, err error) {
	left := func(l lease.Lease) lease.Window {
		if !l.IsHold {
			return -1 // before all holds
		}
		return l.Remaining(a.call.Now)
	}
	slices.SortFunc(held, func(x, y lease.Lease) int {
		return cmp.Or(cmp.Compare(left(x), left(y)),
			cmp.Compare(a.call.Now.Since(y.ReleasedAt), a.call.Now.Since(x.ReleasedAt)))
	})
	mayYield, why := a.holdsThatYield(set, held)
	for _, l := range held {
		if a.call.MayGive(l) != nil {
			continue
		}
		if _, err := lease.Apply(l, a.yield(l, mayYield(l)), a.call.Now); err != nil {
			continue
		}
		p, err := a.fresh(set, l.Address, l)
		if l.IsHold {
			p.yields = why
		}
		return p, true, err
	}
	return pick{}, false, nil
}

// holdsThatYield returns which holds the policy onExhaustion allows to end, and why.
func (a *assignment) holdsThatYield(set pool.Set, held []lease.Lease) (mayYield func(lease.Lease) bool, why string) {
	if a.req.Options.OnExhaustion != policy.Fair {
		return func(lease.Lease) bool { return a.req.Options.OnExhaustion == policy.Yield }, "onExhaustion is yield"
	}
	ofNamespace := map[string]uint64{}
	for _, l := range held {
		if l.IsHold {
			ofNamespace[l.Namespace]++
		}
	}
	for namespace, n := range ofNamespace {
		if n > set.Size()/2 && namespace != a.req.Pod.Namespace {
			return func(l lease.Lease) bool { return l.Namespace == namespace },
				fmt.Sprintf("namespace %s held %d of %d addresses", namespace, n, set.Size())
		}
	}
	return func(lease.Lease) bool { return false }, ""
}

// exhausted returns ErrExhausted, with the counts of the range set and the end of the next hold.
func (a *assignment) exhausted(set pool.Set, in inUse) error {
	var holds, coolDowns int
	var first lease.Lease
	for _, l := range in.held {
		if l.IsHold {
			holds++
		} else {
			coolDowns++
		}
		if first.State == lease.None || l.Remaining(a.call.Now) < first.Remaining(a.call.Now) {
			first = l
		}
	}
	next := "no hold will end"
	switch {
	case first.Lapsed(a.call.Now):
		next = fmt.Sprintf("container %s may still have %s, whose hold is over", first.Holder.ContainerID,
			first.Address)
	case first.State == lease.Held:
		next = "the next hold ends: " + lease.UntilText(first.Until(a.call.Now))
	}
	return fmt.Errorf("%w: %s (%d bound, %d held, %d in cool-down; %s)", ErrExhausted, set, in.bound, holds, coolDowns,
		next)
}
