package transact

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// ErrNoEvidence is returned if a store was lost and no source on the host is proven to name all
// addresses in use. Without that proof an address of a running pod could be assigned again.
var ErrNoEvidence = errors.New("nothing on this node tells which addresses are in use")

// Scope is the pool of a call and its settings. The zero Scope is for a call without a pool, such
// as a DEL whose configuration cannot be parsed.
type Scope struct {
	Pool   lease.Pool
	Sets   []pool.Set // nil if the call does not know them
	Soft   time.Duration
	Caches []string // directories of libcni's cache, in addition to the default ones
}

// Existing returns the Scope of an operation on a pool without its CNI configuration, such as one
// of leasectl. It has the default policies.
func Existing(p lease.Pool, sets []pool.Set) Scope {
	return Scope{Pool: p, Sets: sets, Soft: policy.Defaults().SoftHold}
}

// dir returns host-local's directory of the pool, locked. If a call does not know the range sets,
// dir makes no directory, and returns nil where there is none.
func (c *Call) dir(s Scope) (*hostlocal.Dir, error) {
	return c.files.use(s.Pool, s.Sets != nil || hostlocal.Exists(s.Pool))
}

// isElsewhere reports whether p is not the pool of the call, so that an error in p must not make
// the call fail.
func (s Scope) isElsewhere(p lease.Pool) bool { return s.Pool != (lease.Pool{}) && s.Pool != p }

// learn adopts the pool of a call if necessary, before the operation runs: at the first use of the
// pool, after the store was lost, and if host-local's directory was emptied.
func (c *Call) learn(s Scope) error {
	if s.Pool == (lease.Pool{}) {
		return nil
	}
	dir, err := c.dir(s)
	switch {
	case err != nil:
		return err
	case !c.Tx.Adopted(s.Pool) || dir != nil && !dir.IsMarked():
		return c.adopt(s, dir)
	case dir != nil && !dir.IsComplete():
		c.writeAll(s.Pool, dir, true) // a file could not be written, or an earlier version wrote the mark
	}
	return nil
}

// repair replaces damaged records by leases that the sources of the host show, and builds all
// indexes again. A record whose key is damaged is found because its address is still taken in the
// bitmaps of the store (Tx.Unrecorded).
func (c *Call) repair(in Scope) error {
	if err := c.mayLearn(); err != nil {
		return err
	}
	lost := map[lease.Pool][]netip.Addr{}
	add := func(p lease.Pool, a netip.Addr) { lost[p] = append(lost[p], a) }
	for l, err := range c.Tx.All {
		if err != nil && l.Address.IsValid() {
			add(l.Pool, l.Address)
		}
	}
	c.Tx.Unrecorded(add)
	if err := c.Tx.Reindex(); err != nil {
		return err
	}
	for p, addrs := range lost {
		each := Scope{Pool: p, Soft: cmp.Or(in.Soft, policy.Defaults().SoftHold), Caches: in.Caches}
		dir, err := c.files.of(p)
		locked := errors.Is(err, store.ErrBusy) && in.isElsewhere(p)
		if err == nil {
			err = c.adopt(each, dir)
		}
		if err != nil && !locked {
			return err
		}
		for _, a := range addrs {
			if l, err := c.Tx.Get(p, a); l.State != lease.None || err != nil && locked {
				continue
			}
			if err := c.repairUnknown(p, a, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// repairUnknown replaces a damaged record for which no source shows a lease. If host-local's file
// contains a Hold, the hold is over and the address becomes free. Otherwise the address counts as
// in use by an unknown owner until the next boot.
func (c *Call) repairUnknown(p lease.Pool, a netip.Addr, dir *hostlocal.Dir) error {
	l, why := c.foreign(p, a, ""), "its record was damaged, and nothing shows whose it was"
	next := l
	if dir != nil {
		if file, _, err := dir.Read(a); err == nil && hostlocal.IsHold(file.Content) {
			next, why = lease.Lease{}, "its record was damaged; its file says that its hold is over"
		}
	}
	c.files.change(l.Place())
	if err := c.Tx.Put(p, a, next); err != nil {
		return err
	}
	return c.Log(l, store.EventRecovered, why)
}

// adopt reads the sources of the host, and writes the leases that they show to the store, unless
// the store has a lease of the address. dir is host-local's directory, or nil.
func (c *Call) adopt(s Scope, dir *hostlocal.Dir) error {
	if err := c.mayLearn(); err != nil {
		return err
	}
	sources := c.sources
	sources.Files = dir
	found, err := adopt.Find(sources, s.Pool, s.Sets, c.Now, s.Soft, NewID)
	for _, p := range found.Problems {
		c.files.warn("%s", p)
	}
	isComplete := dir != nil && dir.IsComplete()
	if err == nil && !c.Tx.Adopted(s.Pool) {
		err = c.node.proveComplete(found, s.Pool, c.Tx.Lost(), isComplete)
	}
	if err != nil {
		return err
	}
	taken := 0
	for _, f := range found.Findings {
		adopted, err := c.adoptFinding(f, dir)
		if err != nil {
			return err
		}
		if adopted {
			taken++
		}
	}
	if lost := c.Tx.Lost(); lost != "" && !c.Tx.Adopted(s.Pool) {
		c.files.warn("%s; %d leases of network %s are known again from this node; the old file is kept in the "+
			"directory lost", lost, taken, s.Pool.Network)
	}
	if dir != nil {
		// Without the ranges some sources are ignored, so that files may be missing.
		c.writeAll(s.Pool, dir, s.Sets != nil || isComplete || c.Tx.Adopted(s.Pool))
	}
	if s.Sets == nil {
		return nil // the next ADD adopts the pool
	}
	return c.Tx.SetAdopted(s.Pool)
}

// writeAll has the files of all leases of a pool written, and then the mark of its directory, which
// says whether these are all. It leaves out files that name another container, because host-local
// has assigned these addresses.
func (c *Call) writeAll(p lease.Pool, dir *hostlocal.Dir, all bool) {
	for _, l := range c.Tx.InPool(p) {
		if file, _, err := c.read(l.Place(), l); err == nil && file != saysOther {
			c.files.change(l.Place())
		}
	}
	failed := false
	if all, set := c.files.marks[dir]; set {
		failed = !all
	}
	c.files.marks[dir] = all && !failed
}

// adoptFinding writes one lease that the sources of the host show, and reports whether it did. It
// does not if the store has a lease of the address, which is compared with its file when it is
// used. But a hold ends if an interface of another sandbox has the address: an import without the
// ranges of the pool may have made the hold.
func (c *Call) adoptFinding(f adopt.Finding, dir *hostlocal.Dir) (adopted bool, err error) {
	next, event := f.Lease, store.EventAdopted
	cur, err := c.Tx.Get(next.Pool, next.Address)
	if err != nil && !errors.Is(err, store.ErrDamaged) {
		return false, err
	}
	keeps := cur.State == lease.Bound || !f.Seen || cur.Holder.Netns.Same(next.Holder.Netns)
	if cur.State != lease.None && keeps || cur.State == lease.None && c.removesLeftOver(next) {
		return false, nil
	}
	if err := c.Tx.Put(next.Pool, next.Address, next); err != nil {
		return false, err
	}
	if cur.State == lease.None {
		c.files.imported[next.Place()] = true
	}
	if f.FormerInFile && dir != nil {
		// Before the commit, so that the operation itself, and an import after a crash, read a file
		// that names the lease's own container.
		c.files.write(dir, next, c.Now)
	}
	if c.Tx.Lost() != "" {
		event = store.EventRecovered
	}
	return true, c.Log(next, event, f.Why)
}

// removesLeftOver reports whether the only evidence for a lease that is about to be imported is a
// file that is left over from an earlier boot, and has it removed. A lease whose namespace is known
// has other evidence.
func (c *Call) removesLeftOver(l lease.Lease) bool {
	if l.State != lease.Bound || l.Holder.Netns.Ino != 0 {
		return false
	}
	file, _, err := c.read(l.Place(), lease.Lease{})
	if err != nil || file != saysLeftOver {
		return false
	}
	c.files.change(l.Place())
	return true
}

// proveComplete returns ErrNoEvidence if a store was lost, for the given reason, and neither found
// nor host-local's directory (isComplete) proves to name all addresses in use. Then an address that
// is not on an interface, as with gVisor, may be in use although no source names it. A pool that
// was not used in this boot, and that no source shows, has none.
func (n *Node) proveComplete(found adopt.Found, p lease.Pool, lost string, isComplete bool) error {
	if lost == "" || isComplete || found.Named || !found.Shown && !n.Store.Used(p) {
		return nil
	}
	return fmt.Errorf("%w: %s; 'leasectl recover --accept-loss' goes on without them, "+
		"once no pod of network %s runs on this node or its addresses are known to be elsewhere",
		ErrNoEvidence, lost, p.Network)
}

// CanAdopt returns nil if an ADD could adopt the pool. STATUS calls it. lost is the reason if the
// store was lost, otherwise "". dir is host-local's directory, or nil if there is none.
func (n *Node) CanAdopt(in Scope, lost string, dir *hostlocal.Dir) error {
	sources := n.sources(in)
	sources.Files = dir
	found, err := adopt.Find(sources, in.Pool, in.Sets, n.Clock(), policy.Defaults().SoftHold, NewID)
	if err != nil {
		return err
	}
	return n.proveComplete(found, in.Pool, lost, dir != nil && dir.IsComplete())
}

// Find returns the leases of a pool that the sources of the host show, for the dry run of an
// import. It needs no store and changes nothing.
func (n *Node) Find(in Scope, now lease.Instant) (adopt.Found, error) {
	return adopt.Find(n.sources(in), in.Pool, in.Sets, now, policy.Defaults().SoftHold, NewID)
}

// Import adopts the pool again, even if it was adopted before, for `leasectl recover`.
func (c *Call) Import(in Scope) error {
	dir, err := c.dir(in)
	if err != nil {
		return err
	}
	return c.adopt(in, dir)
}

// Export adopts the addresses of a pool that host-local has assigned, releases the leases whose
// DELs host-local has processed, and has all of host-local's files written after the commit. It is
// for the removal of leasehold.
func (c *Call) Export(p lease.Pool) error {
	marked := hostlocal.IsMarked(p)
	dir, err := c.lockFiles(p)
	if err != nil {
		return err
	}
	defer c.writeAll(p, dir, dir.IsMarked() || c.Tx.Adopted(p))
	if err := c.AdmitAll(p); err != nil || !marked { // a file may be missing because there was none
		return err
	}
	return c.Settle(c.Tx.InPool(p))
}

// lockFiles returns host-local's directory of a pool, locked, even if the directory has no mark.
func (c *Call) lockFiles(p lease.Pool) (*hostlocal.Dir, error) {
	dir, err := c.files.use(p, true)
	return dir, cmp.Or(err, c.MayGiveAny(p))
}
