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

// BusyError is returned if host-local's lock of a network is busy for more than a moment. It wraps
// store.ErrBusy.
type BusyError struct {
	Pool lease.Pool
	err  error
}

func (e *BusyError) Error() string { return e.err.Error() + ": host-local's own lock" }
func (e *BusyError) Unwrap() error { return e.err }

// mirrors are host-local's directories of which a call has the lock, and what it has to write there
// after the commit.
type mirrors struct {
	ctx  context.Context
	wait time.Duration // see Scope
	warn func(format string, args ...any)
	open map[lease.Pool]*hostlocal.Dir // nil for a pool that is not mirrored
	busy map[lease.Pool]error          // the pools whose lock was busy in this attempt
	// changed are the addresses whose files have to be written. The value reports whether the file
	// names a container that had the address before.
	changed map[lease.Pool]map[netip.Addr]bool
	after   []func() error
	marks   map[*hostlocal.Dir]int // to be set after that
	// unproven are the directories in which a file could not be written.
	unproven map[*hostlocal.Dir]bool

	// reassigned are the addresses of errReassigned in all attempts. An attempt begins with
	// their files, which do not change while it holds host-local's lock.
	reassigned map[address]bool

	awaited lease.Pool // the pool whose lock was taken without the store's
	locked  *hostlocal.Dir
}

// newMirrors returns the mirrors of a call. Each attempt begins with reset.
func newMirrors(ctx context.Context, wait time.Duration, warn func(string, ...any)) *mirrors {
	return &mirrors{ctx: ctx, wait: cmp.Or(wait, lockMoment), warn: warn, reassigned: map[address]bool{}}
}

// use opens host-local's directory of a pool if mirroring is on. A directory that cannot be written
// is only reported. A busy lock (BusyError) and a directory that cannot be read
// (adopt.ErrUnreadable) are errors.
func (m *mirrors) use(p lease.Pool, on bool) (*hostlocal.Dir, error) {
	if mirror, ok := m.open[p]; ok {
		return mirror, nil
	}
	if !on {
		m.open[p] = nil
		if hostlocal.IsMarked(p) { // mirroring was switched off
			if err := hostlocal.Unmark(p); err != nil {
				m.warn("the files of network %s for host-local are not kept any more, and are marked as if they "+
					"were: %v", p.Network, err)
			}
		}
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

// lock takes host-local's lock of a pool. It waits for a moment only.
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

// await takes host-local's lock of a pool for the next attempt. The caller does not hold the
// store's lock, and await releases all others, because host-local may hold its lock for long.
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

// of returns the directory of a pool whose configuration is not known. Whether it is mirrored
// follows from the mark of the directory.
func (m *mirrors) of(p lease.Pool) (*hostlocal.Dir, error) {
	if mirror, ok := m.open[p]; ok {
		return mirror, nil
	}
	return m.use(p, hostlocal.IsMarked(p))
}

// Put writes a changed lease to the store, and to host-local's file of its address. See
// hostlocal.Dir for the order of the writes.
//
// If that file names another container, Put writes nothing, and the attempt ends with
// errReassigned.
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
	if is := (address{at.Pool, at.Address}); foreign && !c.mirrors.reassigned[is] {
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
	if mirror == nil {
		delete(c.mirrors.changed[at.Pool], at.Address)
	}
	if mirror != nil && next.State == lease.None {
		mirror.Remove(at.Address)
	}
	if err := c.Tx.Put(at.Pool, at.Address, next); err != nil {
		return err
	}
	if mirror != nil && next.State != lease.None && !sameFile(old, next) {
		c.mirrors.change(at.Pool, at.Address, old.State == lease.Bound)
	}
	return nil
}

// change has the file of an address written. See mirrors.changed for namesFormer.
func (m *mirrors) change(p lease.Pool, a netip.Addr, namesFormer bool) {
	if m.changed[p] == nil {
		m.changed[p] = map[netip.Addr]bool{}
	}
	m.changed[p][a] = m.changed[p][a] || namesFormer
}

// hideFormer replaces the name of a container in the file of an address by a mark, before the store
// gives the address to another or holds it. If the call is killed before it writes the file, a DEL
// of that container, served by host-local, must not remove it: nobody would write it again.
func (m *mirrors) hideFormer(mirror *hostlocal.Dir, next lease.Lease, now lease.Instant) {
	if next.State == lease.Bound {
		next.State, next.ReleasedAt, next.Hold = lease.Held, now, next.Soft
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

// exportAll determines the files to be written after the commit: those of changed leases, and all
// of a directory after an adoption, after it was emptied, or if an earlier call did not write all
// its files. It also determines the number of leases for the mark of each directory.
func (c *Call) exportAll() {
	now := c.Now
	for p, mirror := range c.mirrors.open {
		if mirror == nil || !mirror.Locked() {
			continue
		}
		if err := mirror.Flush(); err != nil {
			c.mirrors.warn("a file for host-local cannot be kept: %v", err)
		}
		proven, _ := mirror.Mark()
		leases := c.Tx.LeaseCount(p)
		for _, l := range c.changedIn(p) {
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
// directory are written, those that name another container are left, because host-local has
// assigned those addresses.
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

// sameFile reports whether a change of a lease does not change its file.
func sameFile(old, next lease.Lease) bool {
	return old.State == lease.Bound && next.State == lease.Bound && old.Holder.Is(next.Holder)
}

// reset releases the locks that an attempt took, and drops what it would have written.
func (m *mirrors) reset() {
	for _, mirror := range m.open {
		if mirror != nil && mirror != m.locked {
			mirror.Close()
		}
	}
	m.open, m.busy = map[lease.Pool]*hostlocal.Dir{}, map[lease.Pool]error{}
	m.changed, m.after = map[lease.Pool]map[netip.Addr]bool{}, nil
	m.marks, m.unproven = map[*hostlocal.Dir]int{}, map[*hostlocal.Dir]bool{}
	if m.locked != nil {
		m.locked.Reset()
		m.open[m.awaited] = m.locked
	}
}

// finish writes what the store has committed.
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
