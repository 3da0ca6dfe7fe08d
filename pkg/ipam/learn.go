package ipam

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

// scope is the pool that a call is about, and how the host is to be asked of
// it. The zero scope is a DEL whose configuration names none.
type scope struct {
	pool   lease.Pool
	sets   []pool.Set // nil where the call does not know them
	soft   time.Duration
	mirror bool
	caches []string // directories of libcni's beside the usual ones
	// wait bounds the wait for host-local's lock while the store's is held, for a call
	// that does not wait for it without (see transact); 0 for one that does.
	wait time.Duration
}

func (r Request) scope() scope {
	return scope{pool: r.Pool, sets: r.Sets, soft: r.Options.SoftHold, mirror: r.Options.Mirror,
		caches: r.Options.CNICacheDirs}
}

// isElsewhere reports whether the call is about another pool: then nothing that is
// wrong with this one may stop it.
func (s scope) isElsewhere(p lease.Pool) bool { return s.pool != (lease.Pool{}) && s.pool != p }

// learn makes the pool known before anything is decided in it: at its first
// use, after the store was lost, and where host-local's directory was wiped.
func (c *call) learn(s scope) error {
	if c.tx.FellBack() {
		return c.reconcile(s)
	}
	if s.pool == (lease.Pool{}) {
		return nil
	}
	mirror, err := c.mirrors.use(s.pool, s.mirror)
	if err != nil {
		return err
	}
	if !c.tx.Adopted(s.pool) {
		return c.adopt(s, mirror)
	}
	if mirror == nil || !mirror.Locked() {
		return nil
	}
	leases, marked := mirror.Mark()
	if !marked {
		return c.adopt(s, mirror)
	}
	if leases != c.tx.LeaseCount(s.pool) {
		c.export[s.pool] = mirror // a call ended before it had written all its files
	}
	return nil
}

// reconcile is for a store that may have lost its last transaction: the host is
// asked of every pool. The journal entry makes the commit that repairs the file.
func (c *call) reconcile(s scope) error {
	about := store.Entry{Time: c.now.Wall, Event: store.EventRecovered,
		Reason: "a head page of the store was damaged; its last change may be lost"}
	if err := c.tx.Log(about); err != nil {
		return err
	}
	c.mirrors.warn("%s", about.Reason)
	for _, p := range c.tx.Pools() {
		each := scope{pool: p, soft: s.soft, mirror: hostlocal.IsMarked(p)}
		if p == s.pool {
			each = s
		}
		mirror, err := c.mirrors.use(p, each.mirror)
		if errors.Is(err, store.ErrBusy) && s.isElsewhere(p) {
			if err := c.tx.ClearAdopted(p); err != nil { // it is learnt at its own next call
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
func (c *call) repair(in scope) error {
	if err := c.mayLearn(); err != nil {
		return err
	}
	lost := map[lease.Pool][]netip.Addr{}
	add := func(p lease.Pool, a netip.Addr) { lost[p] = append(lost[p], a) }
	c.tx.Damaged(add)
	c.tx.Unrecorded(add)
	if err := c.tx.Reindex(); err != nil {
		return err
	}
	for p, addrs := range lost {
		each := scope{pool: p, soft: cmp.Or(in.soft, policy.Defaults().SoftHold), mirror: hostlocal.IsMarked(p),
			caches: in.caches}
		mirror, err := c.mirrors.use(p, each.mirror)
		locked := errors.Is(err, store.ErrBusy) && in.isElsewhere(p)
		if err == nil {
			err = c.adopt(each, mirror, addrs...)
		}
		if err != nil && !locked {
			return err
		}
		for _, a := range addrs {
			if l, err := c.tx.Get(p, a); l.State != lease.None || err != nil && locked {
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
func (c *call) repairUnknown(p lease.Pool, a netip.Addr, mirror *hostlocal.Dir) error {
	l, why := c.foreign(p, a, ""), "its record was damaged, and nothing shows whose it was"
	next := l
	if mirror != nil {
		if file, _, err := mirror.Read(a); err == nil && hostlocal.IsHold(file.Content) {
			next, why = lease.Lease{}, "its record was damaged; its file says that its hold is over"
			c.mirrors.remove(mirror, a)
		}
	}
	if err := c.tx.Put(p, a, next); err != nil {
		return err
	}
	return c.log(l, store.EventRecovered, why)
}

// adopt takes over what the host shows of a pool. The records of the damaged addresses cannot be
// read.
func (c *call) adopt(s scope, mirror *hostlocal.Dir, damaged ...netip.Addr) error {
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
	event, lost := store.EventAdopted, c.tx.Lost()
	if lost != "" {
		event = store.EventRecovered
	}
	taken := 0
	for _, f := range found {
		cur, err := c.tx.Get(s.pool, f.Lease.Address)
		if err != nil && !errors.Is(err, store.ErrDamaged) {
			return err
		}
		if !c.outweighs(f, cur) || cur.State == lease.None && c.isLeftover(f.Lease, mirror) {
			continue
		}
		taken++
		next := f.Lease
		if cur.State != lease.None && cur.Holder.ContainerID == next.Holder.ContainerID {
			next = foundAlive(cur, next.Holder)
		}
		if err := c.tx.Put(s.pool, next.Address, next); err != nil {
			return err
		}
		if err := c.log(next, event, f.Why); err != nil {
			return err
		}
	}
	if lost != "" && !c.tx.Adopted(s.pool) {
		c.mirrors.warn("%s; %d leases of network %s are known again from this node; the old file is kept in the "+
			"directory lost", lost, taken, s.pool.Network)
	}
	if mirror != nil && mirror.Locked() {
		c.export[s.pool] = mirror
		c.whole[s.pool] = files != nil
	}
	if s.sets == nil {
		return nil // without the ranges some of it was not asked: the next ADD does
	}
	return c.tx.SetAdopted(s.pool)
}

// ask returns what the host shows. Dir is host-local's directory, nil if it is not open; whole is
// the same, nil if it is not complete. A lost store needs more than that: proof that nothing is
// missing. It is a directory of host-local's that is whole, or that libcni's cache and the snapshot
// name the container of every address in use (adopt.Found.Named). An address that is in no
// namespace (gVisor's) may else be one that nobody names either.
func (c *call) ask(s scope, dir, whole *hostlocal.Dir, damaged []netip.Addr) ([]adopt.Finding, error) {
	node := c.node
	node.Files = dir
	node.Snapshot, node.SnapshotAt = c.snapshot(s.pool, whole, damaged)
	found, err := adopt.Find(node, s.pool, s.sets, c.now, s.soft, newID)
	for _, p := range found.Problems {
		c.mirrors.warn("%s", p)
	}
	if err != nil {
		return nil, err
	}
	if !c.tx.Adopted(s.pool) {
		err = proveComplete(found, s.pool, c.tx.Lost(), whole)
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
func (c *call) snapshot(p lease.Pool, whole *hostlocal.Dir, damaged []netip.Addr) ([]lease.Lease, time.Time) {
	known := c.tx.Adopted(p)
	if known && len(damaged) == 0 {
		return nil, time.Time{}
	}
	all, at, err := c.store.ReadSnapshot()
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
func (c *call) lastHolders(p lease.Pool) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	c.tx.Journal(func(n store.Entry) bool {
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
func (c *call) outweighs(found adopt.Finding, cur lease.Lease) bool {
	f := found.Lease
	living := f.Holder.Netns.Ino != 0 && f.State == lease.Bound
	same := cur.Holder.Netns.Same(f.Holder.Netns)
	_, foreign, err := c.foreignTo(cur) // whether host-local has given it to another container
	foreign = foreign && err == nil
	switch {
	case cur.State == lease.None:
		return true
	case f.State == lease.Held:
		return false
	case (cur.State == lease.Bound || same) && c.look(cur) == lease.Alive:
		return foreign && living && !same
	case same && cur.State == lease.Bound && f.Holder.ContainerID == "":
		return false // its namespace lives, though not at its path
	case cur.Holder.ContainerID == f.Holder.ContainerID:
		// Without the address in it, another namespace at the path is one made anew there.
		known := cur.Holder.Netns.Ino != 0 && cur.Holder.Netns.Path == f.Holder.Netns.Path
		return living && (cur.State == lease.Held || !same) && (found.Seen || same || !known)
	}
	return living || foreign
}

// foundAlive is the lease of a container that the store took for gone, or knew in another
// namespace.
func foundAlive(l lease.Lease, holder lease.Holder) lease.Lease {
	l.State, l.Holder = lease.Bound, holder
	l.Firm, l.Hold, l.ReleasedAt = false, 0, lease.Instant{}
	return l
}

// foreignTo reports whether host-local's file of a lease names somebody else: then host-local has
// given the address away. Where the file cannot be read, err says why that is not known.
func (c *call) foreignTo(l lease.Lease) (content string, foreign bool, err error) {
	if l.State == lease.None {
		return "", false, nil
	}
	mirror, err := c.mirrors.of(l.Pool)
	if err != nil || mirror == nil {
		return "", false, err
	}
	file, found, err := mirror.Read(l.Address)
	if err != nil {
		return "", false, fileUnreadable(l.Address, err)
	}
	if !found {
		return "", false, nil
	}
	foreign = file.IsForeign(l, c.now.BootID,
		func() hostlocal.History { return c.historyOf(l.Pool.Network, l.Address) },
		func() bool { return c.node.IsLive(l.Pool.Network, l.Address, file.Content) })
	return file.Content, foreign, nil
}

func fileUnreadable(a netip.Addr, err error) error {
	return fmt.Errorf("%w: host-local's file of %s cannot be read, so the address counts as in use: %w",
		adopt.ErrUnreadable, a, err)
}

// mayGive returns nil if the address of a lease may be given to somebody, as far as host-local's
// file of it shows; lease.ErrTaken if it names another container, and adopt.ErrUnreadable as well
// if it cannot be read.
func (c *call) mayGive(l lease.Lease) error {
	_, foreign, err := c.foreignTo(l)
	switch {
	case errors.Is(err, store.ErrBusy):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", lease.ErrTaken, err)
	case foreign:
		return lease.ErrTaken
	}
	return nil
}

// isLeftover reports whether what is found of an address without a lease is a file of ours alone
// that is out of date, and removes it.
func (c *call) isLeftover(l lease.Lease, mirror *hostlocal.Dir) bool {
	if mirror == nil || l.State != lease.Bound || l.Holder.Netns.Ino != 0 {
		return false
	}
	file, found, err := mirror.Read(l.Address)
	ours := err == nil && found && hostlocal.Names(file.Content, l.Holder.ContainerID, l.Holder.IfName) &&
		file.IsStale(c.historyOf(l.Pool.Network, l.Address))
	if ours {
		c.mirrors.remove(mirror, l.Address)
	}
	return ours
}

// historyOf returns what the journal says of an address. The journal is read once in a transaction.
func (c *call) historyOf(network string, addr netip.Addr) hostlocal.History {
	if c.journal == nil {
		c.journal = map[networkAddress]hostlocal.History{}
		c.tx.Journal(func(n store.Entry) bool {
			c.addHistory(n)
			return true
		})
	}
	return c.journal[networkAddress{network, addr}]
}

// addHistory adds an entry of the journal, if the journal was read.
func (c *call) addHistory(n store.Entry) {
	if c.journal == nil {
		return
	}
	at := networkAddress{n.Network, n.Address}
	h := c.journal[at]
	switch n.Event {
	case store.EventBound, store.EventKept, store.EventTakenOver:
		h.Owners = append(h.Owners, hostlocal.Owner{ContainerID: n.Container, IfName: n.IfName})
	}
	h.Last = n.Time
	c.journal[at] = h
}

// networkAddress is how the journal names an address.
type networkAddress struct {
	network string
	addr    netip.Addr
}

// foreign is the lease behind a file that is not ours.
func (c *call) foreign(p lease.Pool, addr netip.Addr, content string) lease.Lease {
	return adopt.Foreign(c.node, p, addr, content, c.now, newID).Lease
}

// admit makes a lease of a file that has none, and reports whether the address
// is in use by it. One that we wrote is out of date; one that cannot be read
// may be anybody's.
func (c *call) admit(p lease.Pool, addr netip.Addr) (inUse bool, err error) {
	mirror, err := c.mirrors.of(p)
	if err != nil || mirror == nil {
		return false, err
	}
	why := "host-local has given it to the container"
	file, found, err := mirror.Read(addr)
	switch {
	case err != nil:
		why = fileUnreadable(addr, err).Error()
		c.mirrors.warn("%s", why)
	case !found:
		return false, nil
	case hostlocal.IsHold(file.Content) || file.IsStale(c.historyOf(p.Network, addr)):
		c.mirrors.remove(mirror, addr)
		return false, nil
	}
	l := c.foreign(p, addr, file.Content)
	if err := c.tx.Put(p, addr, l); err != nil {
		return false, err
	}
	return true, c.log(l, store.EventAdopted, why)
}

// admitHolder makes leases of the files that still name an attachment: host-local has served it.
func (c *call) admitHolder(p lease.Pool, who Attachment, files []netip.Addr) error {
	mirror, err := c.mirrors.of(p)
	if err != nil || mirror == nil {
		return err
	}
	for _, addr := range files {
		file, _, err := mirror.Read(addr)
		if err != nil || !hostlocal.Names(file.Content, who.ContainerID, who.IfName) {
			continue
		}
		if err := c.admitFile(p, addr); err != nil {
			return err
		}
	}
	return nil
}

// admitFiles makes leases of all files that are not of the leases of their addresses.
func (c *call) admitFiles(p lease.Pool) error {
	mirror, err := c.mirrors.of(p)
	if err != nil || mirror == nil {
		return err
	}
	addrs, err := mirror.Addresses()
	if err != nil {
		c.mirrors.warn("%v", err)
	}
	for _, addr := range addrs {
		if err := c.admitFile(p, addr); err != nil {
			return err
		}
	}
	return nil
}

// admitFile makes a lease of a file that is not of the lease of its address.
func (c *call) admitFile(p lease.Pool, addr netip.Addr) error {
	l, err := c.tx.Get(p, addr)
	if err == nil && l.State == lease.None {
		_, err = c.admit(p, addr)
	} else if err == nil {
		err = c.giveUp(l)
	}
	return err
}

// giveUp lets go of a lease whose address host-local has given to another
// container meanwhile, unless its own holder is alive.
func (c *call) giveUp(l lease.Lease) error {
	_, foreign, err := c.foreignTo(l)
	if errors.Is(err, store.ErrBusy) {
		return err
	}
	if err != nil {
		c.mirrors.warn("%v", err)
	}
	if err != nil || !foreign || c.look(l) == lease.Alive {
		return nil
	}
	return c.record(l, lease.Lease{}, store.EventRevoked, "host-local has given it to another container")
}

// releaseUnmirrored looks for bound leases whose file is gone or another container's:
// host-local has processed their DEL. Where the holder may be alive all the same, the file is made
// again. Callers read the leases anew.
func (c *call) releaseUnmirrored(leases []lease.Lease) error {
	for _, l := range leases {
		if l.State != lease.Bound {
			continue
		}
		mirror, err := c.mirrors.of(l.Pool)
		if err != nil || mirror == nil {
			return err
		}
		if _, found, err := mirror.Read(l.Address); found || err != nil {
			if err := c.giveUp(l); err != nil {
				return err
			}
			continue
		}
		const why = "host-local has processed its DEL"
		switch life, now := c.prove(l), c.now; {
		case life == lease.Alive, life == lease.Unknown && l.Holder.Netns.Ino != 0:
			c.mirrors.change(l.Pool, l.Address, false)
		case l.Holder.ContainerID == "" && life == lease.Dead: // no DEL names its holder
			_, err = c.orphan(l, life, why)
		case l.Holder.ContainerID == "":
			err = c.record(l, lease.Lease{}, store.EventReleased, why)
		default:
			err = c.releaseLease(l, life, now, why)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
