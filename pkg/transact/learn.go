package transact

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// ErrNoEvidence is returned when a store was lost and nothing on the host tells
// what it knew: running pods could get their addresses taken.
var ErrNoEvidence = errors.New("nothing on this node tells which addresses are in use")

// Scope is the pool that a call is about, and how the host is to be asked of
// it. The zero Scope is a DEL whose configuration names none.
type Scope struct {
	Pool   lease.Pool
	Sets   []pool.Set // nil where the call does not know them
	Soft   time.Duration
	Mirror bool     // host-local's files are kept in step
	Caches []string // directories of libcni's beside the usual ones
	// Wait bounds the wait for host-local's lock while the store's is held, for a call
	// that does not wait for it without (see transact); 0 for one that does.
	Wait time.Duration
}

// Existing is the Scope of a call that makes nothing new: a pool is mirrored only
// where host-local has a directory of it. It does not know the policies.
func Existing(p lease.Pool, sets []pool.Set) Scope {
	return Scope{Pool: p, Sets: sets, Soft: policy.Defaults().SoftHold, Mirror: hostlocal.Exists(p)}
}

// isElsewhere reports whether the call is about another pool: then nothing that is
// wrong with this one may stop it.
func (s Scope) isElsewhere(p lease.Pool) bool { return s.Pool != (lease.Pool{}) && s.Pool != p }

// learn makes the pool known before anything is decided in it: at its first
// use, after the store was lost, and where host-local's directory was wiped.
func (c *Call) learn(s Scope) error {
	if c.Tx.FellBack() {
		return c.reconcile(s)
	}
	if s.Pool == (lease.Pool{}) {
		return nil
	}
	mirror, err := c.mirrors.use(s.Pool, s.Mirror)
	if err != nil {
		return err
	}
	if !c.Tx.Adopted(s.Pool) {
		return c.adopt(s, mirror)
	}
	if mirror == nil || !mirror.Locked() {
		return nil
	}
	leases, marked := mirror.Mark()
	if !marked {
		return c.adopt(s, mirror)
	}
	if leases != c.Tx.LeaseCount(s.Pool) {
		c.export[s.Pool] = mirror // a call ended before it had written all its files
	}
	return nil
}

// reconcile is for a store that may have lost its last transaction: the host is
// asked of every pool. The journal entry makes the commit that repairs the file.
func (c *Call) reconcile(s Scope) error {
	about := store.Entry{Time: c.Now.Wall, Event: store.EventRecovered,
		Reason: "a head page of the store was damaged; its last change may be lost"}
	if err := c.Tx.Log(about); err != nil {
		return err
	}
	c.mirrors.warn("%s", about.Reason)
	for _, p := range c.Tx.Pools() {
		each := Scope{Pool: p, Soft: s.Soft, Mirror: hostlocal.IsMarked(p)}
		if p == s.Pool {
			each = s
		}
		mirror, err := c.mirrors.use(p, each.Mirror)
		if errors.Is(err, store.ErrBusy) && s.isElsewhere(p) {
			if err := c.Tx.ClearAdopted(p); err != nil { // it is learnt at its own next call
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := c.adopt(each, mirror); err != nil {
			return err
		}
	}
	return nil
}

// repair makes damaged records anew from what the host shows, and all indexes
// from the records. Where a record's key is damaged, all that is left of it is
// that its address is marked as taken.
func (c *Call) repair(in Scope) error {
	if err := c.mayLearn(); err != nil {
		return err
	}
	lost := map[lease.Pool][]netip.Addr{}
	add := func(p lease.Pool, a netip.Addr) { lost[p] = append(lost[p], a) }
	c.Tx.Damaged(add)
	c.Tx.Unrecorded(add)
	if err := c.Tx.Reindex(); err != nil {
		return err
	}
	for p, addrs := range lost {
		each := Scope{Pool: p, Soft: cmp.Or(in.Soft, policy.Defaults().SoftHold), Mirror: hostlocal.IsMarked(p),
			Caches: in.Caches}
		mirror, err := c.mirrors.use(p, each.Mirror)
		locked := errors.Is(err, store.ErrBusy) && in.isElsewhere(p)
		if err == nil {
			err = c.adopt(each, mirror, addrs...)
		}
		if err != nil && !locked {
			return err
		}
		for _, a := range addrs {
			if l, err := c.Tx.Get(p, a); l.State != lease.None || err != nil && locked {
				continue
			}
			if err := c.repairUnknown(p, a, mirror); err != nil {
				return err
			}
		}
	}
	return nil
}

// repairUnknown is for an address that the host shows no lease of. Where host-local's
// file is that of a hold, the hold is over. Otherwise the address stays in use by
// nobody known, until the next boot.
func (c *Call) repairUnknown(p lease.Pool, a netip.Addr, mirror *hostlocal.Dir) error {
	l, why := c.foreign(p, a, ""), "its record was damaged, and nothing shows whose it was"
	next := l
	if mirror != nil {
		if file, _, err := mirror.Read(a); err == nil && hostlocal.IsHold(file.Content) {
			next, why = lease.Lease{}, "its record was damaged; its file says that its hold is over"
			mirror.Remove(a)
		}
	}
	if err := c.Tx.Put(p, a, next); err != nil {
		return err
	}
	return c.Log(l, store.EventRecovered, why)
}

// adopt takes over what the host shows of a pool. The records of the damaged addresses cannot be
// read.
func (c *Call) adopt(s Scope, mirror *hostlocal.Dir, damaged ...netip.Addr) error {
	if err := c.mayLearn(); err != nil {
		return err
	}
	var files *hostlocal.Dir // all that there are
	if mirror != nil && mirror.IsWhole() {
		files = mirror
	}
	found, err := c.ask(s, mirror, files, damaged)
	if err != nil {
		return err
	}
	taken := 0
	for _, f := range found {
		adopted, err := c.adoptFinding(f, mirror)
		if err != nil {
			return err
		}
		if adopted {
			taken++
		}
	}
	if lost := c.Tx.Lost(); lost != "" && !c.Tx.Adopted(s.Pool) {
		c.mirrors.warn("%s; %d leases of network %s are known again from this node; the old file is kept in the "+
			"directory lost", lost, taken, s.Pool.Network)
	}
	if mirror != nil && mirror.Locked() {
		c.export[s.Pool] = mirror
		c.whole[s.Pool] = files != nil
	}
	if s.Sets == nil {
		return nil // without the ranges some of it was not asked: the next ADD does
	}
	return c.Tx.SetAdopted(s.Pool)
}

// adoptFinding writes the lease that the host shows of an address, and reports whether it did: not
// if the store knows better.
func (c *Call) adoptFinding(f adopt.Finding, mirror *hostlocal.Dir) (adopted bool, err error) {
	next, event := f.Lease, store.EventAdopted
	cur, err := c.Tx.Get(next.Pool, next.Address)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return false, err
	}
	if !c.outweighs(f, cur) || cur.State == lease.None && c.isLeftover(next, mirror) {
		return false, nil
	}
	if cur.State != lease.None && cur.Holder.ContainerID == next.Holder.ContainerID {
		next = foundAlive(cur, next.Holder)
	}
	if err := c.Tx.Put(next.Pool, next.Address, next); err != nil {
		return false, err
	}
	if c.Tx.Lost() != "" {
		event = store.EventRecovered
	}
	return true, c.Log(next, event, f.Why)
}

// ask returns what the host shows. Dir is host-local's directory, nil if it is not open; whole is
// the same, nil if it is not complete. A lost store needs more than that: proof that nothing is
// missing. It is a directory of host-local's that is whole, or that libcni's cache and the snapshot
// name the container of every address in use (adopt.Found.Named). An address that is in no
// namespace (gVisor's) may else be one that nobody names either.
func (c *Call) ask(s Scope, dir, whole *hostlocal.Dir, damaged []netip.Addr) ([]adopt.Finding, error) {
	sources := c.sources
	sources.Files = dir
	sources.Snapshot, sources.SnapshotAt = c.snapshot(s.Pool, whole, damaged)
	found, err := adopt.Find(sources, s.Pool, s.Sets, c.Now, s.Soft, NewID)
	for _, p := range found.Problems {
		c.mirrors.warn("%s", p)
	}
	if err != nil {
		return nil, err
	}
	if !c.Tx.Adopted(s.Pool) {
		err = proveComplete(found, s.Pool, c.Tx.Lost(), whole)
	}
	if err != nil {
		return nil, err
	}
	return found.Findings, nil
}

// proveComplete returns ErrNoEvidence if a store was lost, for the given reason, and neither found
// nor host-local's directory proves to name all addresses in use. Whole is nil if the directory is
// not complete.
func proveComplete(found adopt.Found, p lease.Pool, lost string, whole *hostlocal.Dir) error {
	if lost == "" || whole != nil || found.Named {
		return nil
	}
	return fmt.Errorf("%w: %s; 'leasectl recover --accept-loss' goes on without them, "+
		"once no pod of network %s runs on this node or its addresses are known to be elsewhere",
		ErrNoEvidence, lost, p.Network)
}

// snapshot returns what counts of the agent's snapshot. It is older than the store, so it says
// something of a pool that the store does not know, and of damaged addresses: those that nobody
// else was given since.
func (c *Call) snapshot(p lease.Pool, whole *hostlocal.Dir, damaged []netip.Addr) ([]lease.Lease, time.Time) {
	known := c.Tx.Adopted(p)
	if known && len(damaged) == 0 {
		return nil, time.Time{}
	}
	all, at, err := c.node.Store.ReadSnapshot()
	if err != nil {
		c.mirrors.warn("%v", err)
	}
	holders := map[netip.Addr]string{}
	if known {
		holders = c.lastHolders(p)
	}
	return slices.DeleteFunc(snapshotOf(all, p, whole), func(l lease.Lease) bool {
		if known && !slices.Contains(damaged, l.Address) {
			return true
		}
		holder, logged := holders[l.Address]
		return logged && holder != l.Holder.ContainerID
	}), at
}

// snapshotOf returns the snapshot's leases of a pool, without those whose files were removed since.
// Whole is nil if host-local's directory is not complete.
func snapshotOf(all []lease.Lease, p lease.Pool, whole *hostlocal.Dir) []lease.Lease {
	return slices.DeleteFunc(all, func(l lease.Lease) bool {
		return l.Pool != p || whole != nil && !whole.Has(l.Address)
	})
}

// lastHolders returns the containers that were given the pool's addresses last, as far as the
// journal goes back.
func (c *Call) lastHolders(p lease.Pool) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	c.Tx.Journal(func(n store.Entry) bool {
		switch n.Event {
		case store.EventBound, store.EventKept, store.EventTakenOver, store.EventAdopted, store.EventRecovered:
			if n.Network == p.Network {
				out[n.Address] = n.Container
			}
		}
		return true
	})
	return out
}

// outweighs reports whether what the host shows replaces what the store says. Two
// that name one container agree, and the store knows more, unless the container
// lives in a namespace that the store does not know.
func (c *Call) outweighs(found adopt.Finding, cur lease.Lease) bool {
	f := found.Lease
	living := f.Holder.Netns.Ino != 0 && f.State == lease.Bound
	same := cur.Holder.Netns.Same(f.Holder.Netns)
	_, foreign, _ := c.foreignTo(cur) // whether host-local has given it to another container
	switch {
	case cur.State == lease.None:
		return true
	case f.State == lease.Held:
		return false
	case (cur.State == lease.Bound || same) && c.QuickState(cur) == lease.Alive:
		return foreign && living && !same
	case same && cur.State == lease.Bound && f.Holder.ContainerID == "":
		return false // its namespace lives, though not at its path
	case cur.Holder.ContainerID == f.Holder.ContainerID:
		return living && returned(found, cur)
	}
	return living || foreign
}

// returned reports whether the container of a lease lives although the store says that it was
// released, or in a namespace that the store does not know.
func returned(found adopt.Finding, cur lease.Lease) bool {
	was, is := cur.Holder.Netns, found.Lease.Holder.Netns
	if was.Same(is) {
		return cur.State == lease.Held
	}
	// Without the address in it, another namespace at the path is one made anew there.
	return found.Seen || was.Ino == 0 || was.Path != is.Path
}

// foundAlive is the lease of a container that the store took for gone, or knew in another
// namespace.
func foundAlive(l lease.Lease, holder lease.Holder) lease.Lease {
	l.State, l.Holder = lease.Bound, holder
	l.Firm, l.Hold, l.ReleasedAt = false, 0, lease.Instant{}
	return l
}

// CanAdopt returns nil if an ADD could adopt the pool. Mirror is nil
// if host-local has no directory of it.
func (n *Node) CanAdopt(in Scope, lost string, mirror *hostlocal.Dir) error {
	files := mirror
	if mirror != nil && !mirror.IsComplete() {
		mirror = nil
	}
	all, at, err := n.Store.ReadSnapshot()
	if err != nil {
		n.Warnf("%v", err)
	}
	sources := n.sources(in)
	sources.Files = files
	sources.Snapshot, sources.SnapshotAt = snapshotOf(all, in.Pool, mirror), at
	found, err := adopt.Find(sources, in.Pool, in.Sets, n.Clock(), policy.Defaults().SoftHold, NewID)
	if err != nil {
		return err
	}
	return proveComplete(found, in.Pool, lost, mirror)
}

// Find returns what the host shows of a pool. It needs no store and changes nothing.
func (n *Node) Find(in Scope, now lease.Instant) (adopt.Found, error) {
	return adopt.Find(n.sources(in), in.Pool, in.Sets, now, policy.Defaults().SoftHold, NewID)
}

// Import adopts what the host shows of a pool, also where the pool is known.
func (c *Call) Import(in Scope) error {
	mirror, err := c.mirrors.use(in.Pool, in.Mirror)
	if err != nil {
		return err
	}
	return c.adopt(in, mirror)
}

// Export has all files of host-local's of a pool written. What host-local has given meanwhile
// becomes a lease first.
func (c *Call) Export(p lease.Pool) error {
	mirror := c.mirrors.open[p]
	if mirror == nil {
		var err error
		if mirror, err = c.mirrors.lock(p); err != nil {
			return err
		}
	}
	c.export[p] = mirror
	return c.AdmitFiles(p)
}
