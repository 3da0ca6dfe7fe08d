package transact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// lockMoment is how long a call waits for host-local's lock of a network while it holds the store's
// lock, which calls of all networks need.
const lockMoment = 5 * time.Millisecond

// BusyError is returned if host-local's lock of a pool is not free within lockMoment, or within the
// Wait of the Scope. It wraps store.ErrBusy.
type BusyError struct {
	Pool lease.Pool
	err  error
}

func (e *BusyError) Error() string { return e.err.Error() + ": host-local's own lock" }
func (e *BusyError) Unwrap() error { return e.err }

// mirrors are the directories of host-local that a call has open, and the files that it has to
// write there after the commit. A mirror is host-local's directory of one pool.
type mirrors struct {
	ctx  context.Context
	wait time.Duration // see Scope
	warn func(format string, args ...any)
	open map[lease.Pool]*hostlocal.Dir // nil for a pool that is not mirrored
	busy map[lease.Pool]error          // the pools whose lock was busy in this attempt
	// changed are the addresses whose files have to be written if they have a lease at the end of
	// the call. The value is true if the present file names the container of a former lease (see
	// hideFormer).
	changed map[lease.Pool]map[netip.Addr]bool
	// adopted are the addresses without a lease before this attempt, which has adopted one.
	adopted  map[lease.Place]bool
	after    []func() error          // writes files after the commit
	marks    map[*hostlocal.Dir]int  // the marks to be set after that: numbers of leases
	unproven map[*hostlocal.Dir]bool // directories in which a file could not be written

	// reassigned are the addresses for which attempts of this call returned errReassigned.
	reassigned map[lease.Place]bool

	awaited lease.Pool     // the pool whose lock was acquired by await
	locked  *hostlocal.Dir // the directory of that pool
}

// newMirrors returns the mirrors of a call, for Node.transact. Each attempt begins with reset.
func newMirrors(ctx context.Context, wait time.Duration, warn func(string, ...any)) *mirrors {
	return &mirrors{ctx: ctx, wait: cmp.Or(wait, lockMoment), warn: warn, reassigned: map[lease.Place]bool{}}
}

// use returns host-local's directory of a pool, or nil if on is false. It opens and locks the
// directory once in an attempt. If the directory cannot be locked for writing, use reports a
// warning and returns it unlocked. It returns a BusyError if the lock is busy, and
// adopt.ErrUnreadable if the directory cannot be read.
func (m *mirrors) use(p lease.Pool, on bool) (*hostlocal.Dir, error) {
	if mirror, ok := m.open[p]; ok {
		return mirror, nil
	}
	if !on {
		m.open[p] = nil
		return nil, nil
	}
	mirror, err := m.lock(p)
	if errors.Is(err, store.ErrBusy) {
		return nil, err
	}
	if err != nil {
		m.warn("the files of network %s for host-local cannot be kept: %v", p.Network, err)
		if mirror, err = hostlocal.OpenUnlocked(p); err != nil {
			return nil, fmt.Errorf("%w: %w", adopt.ErrUnreadable, err)
		}
		m.open[p] = mirror
	}
	return mirror, nil
}

// lock opens host-local's directory of a pool and acquires its lock. It returns a BusyError if the
// lock is busy for longer than wait.
func (m *mirrors) lock(p lease.Pool) (*hostlocal.Dir, error) {
	if m.busy[p] != nil {
		return nil, m.busy[p]
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.wait)
	defer cancel()
	mirror, err := hostlocal.Open(ctx, p)
	if errors.Is(err, store.ErrBusy) {
		m.busy[p] = &BusyError{p, err}
		return nil, m.busy[p]
	}
	if err == nil {
		m.open[p] = mirror
	}
	return mirror, err
}

// await acquires host-local's lock of a pool for the next attempt. It releases all other locks
// first, and the caller must not hold the store's, because host-local may hold its lock for long.
func (m *mirrors) await(p lease.Pool) error {
	m.release()
	mirror, err := hostlocal.Open(m.ctx, p)
	if errors.Is(err, store.ErrBusy) {
		return &BusyError{p, err}
	}
	if err == nil { // the next attempt reports any other error
		m.awaited, m.locked = p, mirror
	}
	m.reset()
	return nil
}

// of returns host-local's directory of a pool that may be another one than the call's, whose
// configuration is not known. The pool is mirrored if its directory has a mark.
func (m *mirrors) of(p lease.Pool) (*hostlocal.Dir, error) {
	if mirror, ok := m.open[p]; ok {
		return mirror, nil
	}
	return m.use(p, hostlocal.IsMarked(p))
}

// Put writes a changed lease to the store, and has host-local's file of its address written. See
// hostlocal.Dir for the order of the writes.
//
// If the present file names another container than old, Put writes nothing, and the attempt ends
// with errReassigned.
func (c *Call) Put(old, next lease.Lease) error {
	at := next
	if next.State == lease.None {
		at = old
	}
	mirror, err := c.mirrors.of(at.Pool)
	if err != nil {
		return err
	}
	_, foreign, err := c.foreignTo(old)
	if is := at.Place(); foreign && !c.mirrors.reassigned[is] {
		c.reassigned = append(c.reassigned, is)
		return nil
	}
	if mirror != nil && !mirror.Locked() {
		mirror = nil
	}
	if err != nil {
		c.mirrors.warn("%v", err)
		c.mirrors.unproven[mirror] = true
		mirror = nil // Admit reads the file again before the address is assigned
	}
	if mirror != nil && next.State == lease.None {
		mirror.Remove(at.Address)
		c.mirrors.change(at.Pool, at.Address, old.State == lease.Bound)
	}
	if err := c.Tx.Put(at.Pool, at.Address, next); err != nil {
		return err
	}
	if mirror != nil && next.State != lease.None && !sameFile(old, next) {
		c.mirrors.change(at.Pool, at.Address, old.State == lease.Bound)
	}
	return nil
}

// change has the file of an address written after the commit if the address has a lease then. See
// mirrors.changed for namesFormer.
func (m *mirrors) change(p lease.Pool, a netip.Addr, namesFormer bool) {
	if m.changed[p] == nil {
		m.changed[p] = map[netip.Addr]bool{}
	}
	m.changed[p][a] = m.changed[p][a] || namesFormer && !m.adopted[lease.Place{Pool: p, Address: a}]
}

// hideFormer overwrites the file of an address, which names the container of the former lease, with
// a Hold, before the commit that gives the address to another container or holds it. Otherwise, if
// the call were killed before it writes the new file, a DEL of the former container that host-local
// serves would remove the file, and no call would write it again.
//
// If the call itself has adopted the former lease, the file must not be touched before the commit:
// it is the only record of the container. After the commit the mark has another number than the
// store, so that the next call writes the file.
func (m *mirrors) hideFormer(mirror *hostlocal.Dir, next lease.Lease, now lease.Instant) {
	if next.State == lease.Bound {
		next.State, next.ReleasedAt, next.Hold = lease.Held, now, lease.Window(next.Soft)
	}
	if err := m.write(mirror, next, now); err != nil {
		m.warn("a file for host-local cannot be kept: %v", err)
	}
}

// write writes the file of a lease.
func (m *mirrors) write(mirror *hostlocal.Dir, l lease.Lease, now lease.Instant) error {
	err := mirror.Write(l, now)
	if err != nil {
		m.unproven[mirror] = true
	}
	return err
}

// exportAll runs before the commit. It removes the files of addresses that have no lease any more,
// and determines the files to be written after the commit: those of changed leases, or all files of
// a directory after an adoption, after the directory was emptied, or if an earlier call did not
// write all its files. It also determines the number of leases for the mark of each directory.
func (c *Call) exportAll() {
	now := c.Now
	for p, mirror := range c.mirrors.open {
		if mirror == nil || !mirror.Locked() {
			continue
		}
		changed := c.changedIn(p)
		// An address with a new lease keeps its file until the new one is written. Otherwise, a
		// call that is killed in between would leave no file, and the mark would not show that.
		for _, l := range changed {
			mirror.Keep(l.Address)
		}
		if err := mirror.Flush(); err != nil {
			c.mirrors.warn("a file for host-local cannot be kept: %v", err)
		}
		proven, _ := mirror.Mark()
		leases := c.Tx.LeaseCount(p)
		for _, l := range changed {
			if c.mirrors.changed[p][l.Address] {
				c.mirrors.hideFormer(mirror, l, now)
				if l.State == lease.Held {
					continue // hideFormer has written its file
				}
			}
			c.mirrors.after = append(c.mirrors.after, func() error { return c.mirrors.write(mirror, l, now) })
		}
		if c.export[p] != nil {
			// If the pool is not adopted yet, the files are complete only if they were before.
			if !c.Tx.Adopted(p) && !c.whole[p] {
				leases = hostlocal.Unproven
			}
			c.mirrors.marks[mirror] = leases
		} else if proven != hostlocal.Unproven && proven != leases {
			c.mirrors.marks[mirror] = leases
		}
	}
}

// changedIn returns the leases of a pool whose files have to be written. If all files of a
// directory have to be, it omits those that name another container, because host-local has assigned
// these addresses.
func (c *Call) changedIn(p lease.Pool) (out []lease.Lease) {
	if c.export[p] != nil {
		return slices.DeleteFunc(c.Tx.InPool(p), func(l lease.Lease) bool {
			_, foreign, err := c.foreignTo(l)
			_, changed := c.mirrors.changed[p][l.Address]
			return !changed && (foreign || err != nil)
		})
	}
	for _, a := range slices.SortedFunc(maps.Keys(c.mirrors.changed[p]), netip.Addr.Compare) {
		if l, err := c.Tx.Get(p, a); err == nil && l.State != lease.None {
			out = append(out, l)
		}
	}
	return out
}

// sameFile reports whether the files of two leases of an address have the same content.
func sameFile(old, next lease.Lease) bool {
	return old.State == lease.Bound && next.State == lease.Bound && old.Holder.Is(next.Holder)
}

// reset prepares for an attempt: it releases the locks of the former attempt, except that of await,
// and discards the files that the former attempt would have written.
func (m *mirrors) reset() {
	for _, mirror := range m.open {
		if mirror != nil && mirror != m.locked {
			mirror.Close()
		}
	}
	m.open, m.busy = map[lease.Pool]*hostlocal.Dir{}, map[lease.Pool]error{}
	m.changed, m.after = map[lease.Pool]map[netip.Addr]bool{}, nil
	m.adopted = map[lease.Place]bool{}
	m.marks, m.unproven = map[*hostlocal.Dir]int{}, map[*hostlocal.Dir]bool{}
	if m.locked != nil {
		m.locked.Reset()
		m.open[m.awaited] = m.locked
	}
}

// finishSoon is finish before the store's lock is released, if there are few files. It releases
// host-local's locks, too. Otherwise the next call would get the store's lock and then wait for
// host-local's, and if this process has no processor meanwhile, it and all the ones behind it would
// begin again after lockMoment.
func (m *mirrors) finishSoon() {
	if len(m.after) <= soon {
		m.finish()
		m.release()
	}
}

// soon is the largest number of files that finishSoon writes. Calls of all networks wait meanwhile.
const soon = 64

// finish writes the files and the marks after the commit.
func (m *mirrors) finish() {
	for _, do := range m.after {
		if err := do(); err != nil {
			m.warn("a file for host-local cannot be kept: %v", err)
		}
	}
	for _, mirror := range m.open {
		if mirror != nil {
			m.setMark(mirror)
		}
	}
}

// setMark writes the mark of a directory if its number has changed or a file could not be written.
func (m *mirrors) setMark(mirror *hostlocal.Dir) {
	leases, due := m.marks[mirror]
	if _, marked := mirror.Mark(); m.unproven[mirror] && (marked || due) {
		leases, due = hostlocal.Unproven, true
	}
	if !due {
		return
	}
	if err := mirror.SetMark(leases); err != nil {
		m.warn("the mark of a directory for host-local cannot be kept: %v", err)
	}
}

// release releases all locks.
func (m *mirrors) release() {
	m.reset()
	if m.locked != nil {
		m.locked.Close()
		m.locked = nil
	}
	clear(m.open)
}
