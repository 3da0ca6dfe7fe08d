package operation

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/importer"
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
	Pool     lease.Pool
	Sets     []pool.Set // nil if the call does not know them; then an unknown pool is not imported
	CoolDown time.Duration
	Caches   []string // directories of libcni's cache, in addition to the default ones
	// Import has the pool imported although Sets are not known. It is not known after that.
	Import bool

	isRepair bool // no damaged record is repaired first
}

// Existing returns the Scope of an operation on a pool without its CNI configuration, such as one
// of leasectl. It has the default policies.
func Existing(p lease.Pool, sets []pool.Set) Scope {
	return Scope{Pool: p, Sets: sets, CoolDown: policy.Defaults().CoolDown}
}

// From returns the scope with what a store has of its pool: directories of libcni's cache, and
// range sets that are not known.
func (s Scope) From(tx *store.Tx) Scope {
	if s.Caches = slices.Concat(s.Caches, tx.CacheDirs(s.Pool)); s.Sets == nil {
		s.Sets = tx.Ranges(s.Pool)
	}
	return s
}

// hasDir reports whether host-local's directory of the pool is used. If a call does not know the
// range sets, it makes no directory.
func (s Scope) hasDir() bool { return s.Sets != nil || hostlocal.Exists(s.Pool) }

// unreadError has the sources of the host read for an import (Node.readSources).
type unreadError struct{ scope Scope }

func (e *unreadError) Error() string {
	return "the sources of network " + e.scope.Pool.Network + " are not read yet"
}

// readSources reads the sources of the host for the next attempts, which import the pool. It takes
// long if the pool has many files, so that the store's lock must not be held; host-local's lock of
// the pool is, so that nothing changes until the import is committed.
func (n *Node) readSources(f *addressFiles, s Scope) error {
	if s.hasDir() {
		if err := f.await(s.Pool); err != nil {
			return err
		}
	}
	shown := &found{dir: f.awaited[s.Pool].dir}
	shown.Found, shown.err = n.Find(s, shown.dir)
	f.found[s.Pool] = shown
	return nil
}

// Find returns the leases of a pool that the sources of the host show. It needs no store and
// changes nothing. dir is host-local's directory, or nil if the caller has not opened it.
func (n *Node) Find(s Scope, dir *hostlocal.Dir) (importer.Found, error) {
	sources := n.sources(s.Caches)
	sources.Files = dir
	return importer.Find(sources, s.Pool, s.Sets, n.Clock(), s.CoolDown, NewID)
}

// importUnknown imports the pool of a call if the store does not know it, before the operation
// runs. In a pool that the store knows it writes all files again if host-local's directory or its
// mark was removed, and imports only what is in use without a lease.
func (c *Call) importUnknown(s Scope) error {
	if s.Pool == (lease.Pool{}) {
		return nil
	}
	dir, err := c.files.use(s.Pool, s.hasDir())
	isKnown := c.Tx.Imported(s.Pool)
	switch {
	case err != nil || errors.Is(c.files.open[s.Pool].err, ErrOtherNode):
		return err
	case !isKnown && (s.Sets != nil || s.Import), isKnown && (s.Import || dir != nil && !dir.Mark.Exists):
		return c.importPool(s, dir, isKnown)
	case isKnown && dir != nil && !dir.Mark.Complete:
		c.writeAll(s.Pool, dir) // a file could not be written
	}
	return nil
}

// importPool writes the leases that the sources of the host show to the store, and has the files of
// the pool written. dir is host-local's directory, or nil.
func (c *Call) importPool(s Scope, dir *hostlocal.Dir, isKnown bool) error {
	if err := c.mayImport(); err != nil {
		return err
	}
	shown := c.files.found[s.Pool]
	if shown == nil || shown.dir != dir {
		return &unreadError{s.From(c.Tx)}
	}
	err := shown.err
	if err == nil && !isKnown && !shown.compared { // host-local may have served calls since an import that failed
		err = c.CompareFiles(c.Tx.InPool(s.Pool))
	}
	if err == nil && !isKnown {
		err = c.node.proveComplete(shown.Found, s.Pool, c.Tx.Lost(), dir != nil && dir.Mark.Complete)
	}
	for _, p := range shown.Problems {
		c.files.warn("%s", p)
	}
	if err != nil {
		return err
	}
	if len(shown.Findings) > 0 {
		return c.importFindings(s, shown, isKnown)
	}
	if isKnown {
		c.writeAll(s.Pool, dir)
		return nil
	}
	if err := c.copyFromOtherDirs(s, c.Tx.AllIn); err != nil {
		return err
	}
	if lost := c.Tx.Lost(); lost != "" {
		c.files.warn("%s; %d leases of network %s are known again from this node; the old file is kept in the "+
			"directory lost", lost, len(c.Tx.InPool(s.Pool)), s.Pool.Network)
	}
	if s.Sets == nil {
		return nil // the next ADD imports the pool
	}
	if dir != nil {
		c.writeAll(s.Pool, dir)
	}
	return errors.Join(c.Tx.SetCacheDirs(s.Pool, s.Caches), c.Tx.SetImported(s.Pool))
}

// importFindings writes the leases that the sources of the host show, as many as one transaction
// may take, and has the import go on in the next one. All are committed before the operation runs
// and before the pool is known. So a call that is killed leaves no file of a former container at an
// address that it has bound to another one, and no reservation of the Kruise fork for a later
// import.
func (c *Call) importFindings(s Scope, shown *found, isKnown bool) error {
	done := 0
	for ; done < len(shown.Findings) && c.Step() == nil; done++ {
		if err := c.importFinding(shown.Findings[done], shown.dir, isKnown); err != nil {
			return err
		}
	}
	c.keep = func() {
		c.files.keep(s.Pool)
		shown.Findings, shown.Problems, shown.compared = shown.Findings[done:], nil, true
	}
	if done == len(shown.Findings) && !isKnown && s.Sets != nil {
		c.converted = shown.Used
	}
	return errMore
}

// writeAll has the files of all leases of a pool written, and then the mark of its directory, which
// says whether these are all. Files of containers to which host-local has given the addresses stay.
func (c *Call) writeAll(p lease.Pool, dir *hostlocal.Dir) {
	for _, l := range c.Tx.InPool(p) {
		v, f, err := c.compare(l.Place(), l, func() lease.Liveness { return lease.Alive })
		if err == nil && (v == missing || v == follow && !f.IsOf(l, c.Now)) {
			c.files.changed[l.Place()] = true
		}
	}
	if _, failed := c.files.marks[dir]; !failed {
		c.files.marks[dir] = true
	}
}

// takesHold reports whether what the sources show of an address in use ends a hold: another
// container than the last holder, or an interface in another namespace than the last holder's has
// it.
func takesHold(f importer.Finding, last lease.Holder) bool {
	return f.InUse && !last.Netns.Same(f.Lease.Holder.Netns) &&
		(f.Seen || last.ContainerID != f.Lease.Holder.ContainerID)
}

// importFinding writes one lease that the sources of the host show. It does not if the address has
// a lease, unless that is a hold that it takesHold. In a pool that the store knows only what is in
// use becomes a lease.
func (c *Call) importFinding(f importer.Finding, dir *hostlocal.Dir, isKnown bool) error {
	next, event := f.Lease, store.EventImported
	cur, err := c.Tx.Get(next.Pool, next.Address)
	switch {
	case err != nil && (isKnown || !errors.Is(err, store.ErrDamaged)):
		return err
	case isKnown && !f.InUse, cur.State == lease.Bound, cur.State == lease.Held && !takesHold(f, cur.Holder),
		cur.State == lease.None && c.removesLeftOver(f, dir):
		return nil
	}
	if err := c.Tx.Put(next.Pool, next.Address, next); err != nil {
		return err
	}
	if next.State == lease.Bound {
		c.SetUsed(next.Pool)
	}
	if f.FormerInFile && dir != nil {
		// Before the commit, so that the operation itself, and an import after a crash, read a file
		// that names the lease's own container.
		c.files.write(dir, next, c.Now)
	}
	if c.Tx.Lost() != "" {
		event = store.EventRecovered
	}
	return c.Log(next, event, f.Why)
}

// removesLeftOver reports whether the only evidence for a lease that is about to be imported is a
// file that is left over from an earlier boot, and has it removed.
func (c *Call) removesLeftOver(f importer.Finding, dir *hostlocal.Dir) bool {
	if f.Lease.State != lease.Bound || f.InUse || dir == nil {
		return false
	}
	file, _, err := dir.Read(f.Lease.Address)
	if err != nil || !c.isLeftOver(f.Lease.Pool, file) ||
		c.sourcesOf(f.Lease.Pool).Named(f.Lease.Pool, f.Lease.Address, file).Life == lease.Alive {
		return false
	}
	c.files.changed[f.Lease.Place()] = true
	return true
}

// copyFromOtherDirs copies leases that the store has of the same network with other data
// directories: the configuration of the network names another one now. in returns those of a pool.
func (c *Call) copyFromOtherDirs(s Scope, in func(lease.Pool) ([]lease.Lease, error)) error {
	for _, o := range c.otherDirs(s.Pool) {
		leases, _ := in(o) // those of damaged records are not known
		for _, l := range leases {
			at := lease.Place{Pool: s.Pool, Address: l.Address}
			cur, _, err := c.Present(at)
			if err != nil || cur.State != lease.None || !pool.Usable(s.Sets, l.Address) {
				continue
			}
			l.Pool, l.ID = s.Pool, NewID()
			why := "network " + s.Pool.Network + " had it in " + o.DataDir
			if err := cmp.Or(c.Put(lease.Lease{}, l), c.Log(l, store.EventImported, why)); err != nil {
				return err
			}
		}
	}
	return nil
}

// CopyFormer copies the leases that a pod had with other data directories of the network, for which
// an ADD may come after the configuration has named that of the call again.
func (c *Call) CopyFormer(key lease.Key) error {
	return c.copyFromOtherDirs(c.scope, func(p lease.Pool) ([]lease.Lease, error) {
		key.Pool = p
		leases, err := c.Tx.ByKey(key)
		return slices.DeleteFunc(leases, func(l lease.Lease) bool { return !l.IsRetained() }), err
	})
}

// otherDirs returns the pools of the same network with other data directories.
func (c *Call) otherDirs(p lease.Pool) []lease.Pool {
	return slices.DeleteFunc(c.Tx.Pools(), func(o lease.Pool) bool { return o.Network != p.Network || o == p })
}

// IsElsewhere reports whether a container that is not proven dead has an address by a lease of the
// same network with another data directory. Which configurations a node has is not known: a runtime
// may use an old one again.
func (c *Call) IsElsewhere(p lease.Pool, addr netip.Addr) bool {
	for _, o := range c.otherDirs(p) {
		l, err := c.Tx.Get(o, addr)
		if err != nil || l.State == lease.Bound && c.Evidence.Prove(l) != lease.Dead {
			return true
		}
	}
	return false
}

// IsHeldElsewhere reports whether an address is held with another data directory of the network,
// for a pod without a lease in this pool: its next ADD copies the hold (CopyFormer).
func (c *Call) IsHeldElsewhere(p lease.Pool, addr netip.Addr) bool {
	return slices.ContainsFunc(c.otherDirs(p), func(o lease.Pool) bool {
		l, err := c.Tx.Get(o, addr)
		if err != nil || !l.IsHold || l.Lapsed(c.Now) {
			return false
		}
		key := l.Key()
		key.Pool = p
		own, err := c.Tx.ByKey(key)
		return err == nil && len(own) == 0
	})
}

// repair replaces damaged records by what the sources of the host show of their addresses, and
// builds all indexes again. A record whose key is damaged is found because its address is still
// taken in the bitmaps of the store (Tx.Unrecorded).
func (c *Call) repair(in Scope) error {
	if err := c.mayImport(); err != nil {
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
		dir, err := c.files.of(p)
		// Of another pool than the call's an error must not make the call fail.
		locked := errors.Is(err, store.ErrBusy) && in.Pool != (lease.Pool{}) && in.Pool != p
		var shown importer.Found
		if err == nil {
			s := Scope{Pool: p, CoolDown: cmp.Or(in.CoolDown, c.scope.CoolDown)}
			shown, err = c.node.Find(s.From(c.Tx), dir)
		}
		if err != nil && !locked {
			return err
		}
		for _, a := range addrs {
			// A record whose key is damaged would be free.
			if _, damaged := c.Tx.Get(p, a); damaged != nil && locked {
				continue
			}
			if err := c.repairAt(p, a, shown.Findings, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// repairAt replaces one damaged record. If the sources show nothing of the address, it is free if
// its file says that it was held, and otherwise it counts as in use by an unknown owner until the
// next boot. A pod with another lease gets no hold of an entry in libcni's cache.
func (c *Call) repairAt(p lease.Pool, a netip.Addr, shown []importer.Finding, dir *hostlocal.Dir) error {
	at := lease.Place{Pool: p, Address: a}
	next, why := importer.Unknown(p, a, c.Now), "its record was damaged, and nothing shows whose it was"
	if dir != nil {
		if file, _, err := dir.Read(a); err == nil && hostlocal.IsHold(file.Content) {
			next, why = lease.Lease{}, "its record was damaged; its file says that its hold is over"
		}
	}
	for _, f := range shown {
		others, err := c.Tx.ByKey(f.Lease.Key())
		if f.Lease.Address == a && (f.IsOurs || f.Lease.State == lease.Bound || err == nil && len(others) == 0) {
			next, why = f.Lease, f.Why
		}
	}
	if next.State != lease.None && next.ID == "" {
		next.ID = NewID()
	}
	c.files.changed[at] = true
	return cmp.Or(c.Tx.Put(p, a, next), c.Log(importer.Unknown(p, a, c.Now), store.EventRecovered, why))
}

// proveComplete returns ErrNoEvidence if addresses may be in use that nothing on the node names:
//
//	the first that applies                                      each address in use is known
//	no store was lost (lost is "")                              yes, from the store
//	host-local's directory is complete (isComplete)             yes, from its files
//	libcni's cache names the container of each one (Named)      yes, from the cache
//	no source Shows one, and none was assigned in this boot     yes, there is none
//	any other                                                   no: gVisor has none on an interface
func (n *Node) proveComplete(found importer.Found, p lease.Pool, lost string, isComplete bool) error {
	if lost == "" || isComplete || found.Named || !found.Shown && !n.Store.Run().Used(p) {
		return nil
	}
	return fmt.Errorf("%w: %s; 'leasectl recover --accept-loss' goes on without them, "+
		"once no pod of network %s runs on this node or its addresses are known to be elsewhere",
		ErrNoEvidence, lost, p.Network)
}

// CanImport returns nil if an ADD could import the pool. STATUS calls it. lost is the reason if the
// store was lost, otherwise "". dir is host-local's directory, or nil if there is none.
func (n *Node) CanImport(in Scope, lost string, dir *hostlocal.Dir) error {
	found, err := n.Find(in, dir)
	if err != nil {
		return err
	}
	return n.proveComplete(found, in.Pool, lost, dir != nil && dir.Mark.Complete)
}

// Export makes leases of the addresses of a pool that host-local has given, releases those whose
// DELs host-local has processed, and has all of host-local's files written after the commit. It is
// for the removal of leasehold.
func (c *Call) Export(p lease.Pool) error {
	marked := hostlocal.IsMarked(p)
	dir, err := c.lockFiles(p)
	if err != nil {
		return err
	}
	defer c.writeAll(p, dir)
	addrs, err := dir.Addresses()
	if err != nil {
		c.files.warn("%v", err)
	}
	if err = c.ImportFiles(p, addrs, nil); err != nil || !marked && c.Tx.Imported(p) { // the directory was removed
		return err
	}
	return c.CompareFiles(c.Tx.InPool(p))
}

// lockFiles returns host-local's directory of a pool, locked, even if the directory has no mark.
func (c *Call) lockFiles(p lease.Pool) (*hostlocal.Dir, error) {
	dir, err := c.files.use(p, true)
	return dir, cmp.Or(err, c.MayGiveAny(p))
}
