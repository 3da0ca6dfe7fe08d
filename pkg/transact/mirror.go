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

// lockMoment is how long a call waits for host-local's lock of a network while it
// holds the store's, which every network's calls need.
const lockMoment = 5 * time.Millisecond

// BusyError says that host-local's lock of a network was not to be had at once.
// It is an ErrBusy.
type BusyError struct {
	Pool lease.Pool
	err  error
}

func (e *BusyError) Error() string { return e.err.Error() + ": host-local's own lock" }
func (e *BusyError) Unwrap() error { return e.err }

// mirrors are the host-local directories that a call has under host-local's
// lock, and what it still has to write there once the store has committed.
type mirrors struct {
	ctx  context.Context
	wait time.Duration // see scope
	warn func(format string, args ...any)
	open map[lease.Pool]*hostlocal.Dir // nil for a pool that is not mirrored
	busy map[lease.Pool]error          // whose lock was not to be had, in this attempt
	// changed are the addresses whose files are brought in step with what the
	// transaction leaves behind. It is true where the file names a container that
	// had the address before.
	changed map[lease.Pool]map[netip.Addr]bool
	after   []func() error
	marks   map[*hostlocal.Dir]int // to be set after them
	// unproven are the directories in which a file could not be brought in step.
	unproven map[*hostlocal.Dir]bool

	// reassigned are the addresses of errReassigned in all attempts. An attempt begins with
	// their files, which do not change while it holds host-local's lock.
	reassigned map[address]bool

	awaited lease.Pool // whose lock was waited for without the store's
	locked  *hostlocal.Dir
}

// newMirrors returns the mirrors of a call. Each attempt begins with reset.
func newMirrors(ctx context.Context, wait time.Duration, warn func(string, ...any)) *mirrors {
	return &mirrors{ctx: ctx, wait: cmp.Or(wait, lockMoment), warn: warn, reassigned: map[address]bool{}}
}

// use opens the mirror of a pool if the configuration has it on. A mirror that
// cannot be kept is reported and fails nothing, as long as it can be read: a busy
// lock (BusyError) and a directory that cannot be read (adopt.ErrUnreadable) are errors.
func (m *mirrors) use(p lease.Pool, on bool) (*hostlocal.Dir, error) {
	if mirror, ok := m.open[p]; ok {
		return mirror, nil
	}
	if !on {
		m.open[p] = nil
		if hostlocal.IsMarked(p) { // not any more
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

// lock takes host-local's lock of a pool if it is to be had within a moment.
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

// await takes host-local's lock of a pool for the next attempt, without the store's
// in hand, for as long as the call may take. It holds no other meanwhile: host-local
// keeps the one that it has for as long as it likes, and others may need ours.
func (m *mirrors) await(p lease.Pool) error {
	m.release()
	mirror, err := hostlocal.Open(m.ctx, p)
	if errors.Is(err, store.ErrBusy) {
		return &BusyError{p, err}
	}
	if err == nil { // any other error is met again, and reported then
		m.awaited, m.locked = p, mirror
	}
	m.reset()
	return nil
}

// of is the mirror of a pool that is met without its configuration: it has one
// if it had one before.
func (m *mirrors) of(p lease.Pool) (*hostlocal.Dir, error) {
	if mirror, ok := m.open[p]; ok {
		return mirror, nil
	}
	return m.use(p, hostlocal.IsMarked(p))
}

// Put is how every change of a lease is written: to the store, and to the file
// that host-local knows the address by. See hostlocal.Dir for the order.
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
		mirror = nil // whatever its file says, Admit reads it again before anybody gets the address
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

// write brings the file of a lease in step with it.
func (m *mirrors) write(mirror *hostlocal.Dir, l lease.Lease, now lease.Instant) error {
	err := mirror.Write(l, now)
	if err != nil {
		m.unproven[mirror] = true
	}
	return err
}

// exportAll brings files in step with what the transaction leaves behind: those of
// leases that it changed, and whole directories after an adoption, where they were
// wiped, and where a call did not write all its files. And it says in each directory's
// mark how many leases have a file there from now on.
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
					continue // that is what its file says
				}
			}
			c.mirrors.after = append(c.mirrors.after, func() error { return c.mirrors.write(mirror, l, now) })
		}
		if c.export[p] != nil {
			// Before all is known that the host shows, the files are all that there are only if
			// they were before.
			if !c.Tx.Adopted(p) && !c.whole[p] {
				leases = hostlocal.Unproven
			}
			c.mirrors.marks[mirror] = leases
		} else if proven != hostlocal.Unproven && proven != leases {
			c.mirrors.marks[mirror] = leases
		}
	}
}

// changedIn are the leases of a pool whose files are to be written. Where a directory is brought in
// step as a whole, a file that names another container stays: host-local has given the address
// away.
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

// sameFile reports whether a change leaves the address's file as it is.
func sameFile(old, next lease.Lease) bool {
	return old.State == lease.Bound && next.State == lease.Bound && old.Holder.Is(next.Holder)
}

// reset forgets what an attempt wanted to write that did not commit, and the locks
// that it took.
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

// Release gives all locks back.
func (m *mirrors) release() {
	m.reset()
	if m.locked != nil {
		m.locked.Close()
		m.locked = nil
	}
	clear(m.open)
}
