package operation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// lockMoment is how long a call waits for host-local's lock of a network while it holds the store's
// lock, which calls of all networks need.
const lockMoment = 5 * time.Millisecond

// BusyError is returned if host-local's lock of a pool is not free in time. It is a store.ErrBusy.
type BusyError struct {
	Pool lease.Pool
	err  error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%v: %v: host-local's own lock", store.ErrBusy, e.err)
}
func (e *BusyError) Unwrap() error { return store.ErrBusy }

// addressFiles are the directories of host-local that a call has open.
type addressFiles struct {
	ctx   context.Context
	warn  func(format string, args ...any)
	store string                 // the id of this node's store: a directory of it needs no owner
	owner func() hostlocal.Owner // of this node
	open  map[lease.Pool]opened

	// changed are the addresses whose files are compared with their leases when the call commits
	// (Call.writeBefore). They will be those of the leases, whatever they contain now.
	changed map[lease.Place]bool
	after   []func()                // write files after the commit
	marks   map[*hostlocal.Dir]bool // the marks to be set after that (hostlocal.Dir.SetMark)

	awaited map[lease.Pool]opened // what await has locked for the next attempt
	found   map[lease.Pool]*found // what readSources has read for the next attempts
}

// found is what the sources of the host show of a pool, while its directory is locked, without what
// former transactions have processed.
type found struct {
	importer.Found
	err error
	dir *hostlocal.Dir // nil if the pool's files are not used
	// compared reports whether the leases of an earlier call that did not make the pool known were
	// compared with their files.
	compared bool
}

// opened is host-local's directory of a pool, locked. It has no directory if the pool's files are
// not used, or if it could not be locked: because of err, a BusyError or that of opening the lock.
type opened struct {
	dir *hostlocal.Dir
	err error
}

// newFiles returns the addressFiles of a call, for Node.Update. Each attempt begins with reset.
func newFiles(ctx context.Context, warn func(string, ...any)) *addressFiles {
	return &addressFiles{ctx: ctx, warn: warn, awaited: map[lease.Pool]opened{}, found: map[lease.Pool]*found{}}
}

// use returns host-local's directory of a pool, or nil if on is false. It opens and locks the
// directory once in an attempt. If the directory cannot be locked for writing, use reports a
// warning and returns nil. It returns a BusyError if the lock is busy for longer than lockMoment.
func (f *addressFiles) use(p lease.Pool, on bool) (*hostlocal.Dir, error) {
	o, known := f.open[p]
	if on && o == (opened{}) {
		ctx, cancel := context.WithTimeout(f.ctx, lockMoment)
		defer cancel()
		o, known = f.openFiles(ctx, p), false
	}
	if f.open[p] = o; errors.Is(o.err, store.ErrBusy) {
		return nil, o.err
	}
	if o.err != nil && !known {
		f.warn("the files of network %s for host-local cannot be kept: %v", p.Network, o.err)
	}
	return o.dir, nil
}

func (f *addressFiles) openFiles(ctx context.Context, p lease.Pool) opened {
	for _, o := range f.open {
		if o.dir != nil && o.dir.IsAt(p) { // a link has made one directory of those of two pools
			return o
		}
	}
	dir, err := hostlocal.Open(ctx, p)
	switch {
	case errors.Is(err, files.ErrBusy):
		err = &BusyError{p, err}
	case err == nil && dir.Mark.Owner.Store != f.store && dir.Mark.Owner.IsOther(f.owner()):
		dir.Close()
		return opened{err: errOtherNode(p)}
	}
	return opened{dir, err}
}

// ErrOtherNode is returned for a directory of host-local that another node keeps, as on storage
// that several nodes mount. Each node would take the files of the others for those of dead
// containers.
var ErrOtherNode = errors.New("another node keeps the address files")

func errOtherNode(p lease.Pool) error {
	return fmt.Errorf("%w in %s", ErrOtherNode, hostlocal.Path(p))
}

// ProbeOwner returns ErrOtherNode if another node keeps the directory of a pool. id is that of this
// node's store.
func (n *Node) ProbeOwner(id string, p lease.Pool) error {
	if hostlocal.ReadMark(p).Owner.IsOther(n.owner(id)()) {
		return errOtherNode(p)
	}
	return nil
}

// owner returns a function that returns the owner of this node's directories. It reads a file.
func (n *Node) owner(id string) func() hostlocal.Owner {
	return sync.OnceValue(func() hostlocal.Owner {
		return hostlocal.Owner{Store: id, Machine: store.MachineID(), Path: n.Store.Path()}
	})
}

// await acquires host-local's lock of a pool for the next attempt. It releases all other locks
// first, and the caller must not hold the store's, because host-local may hold its lock for long.
func (f *addressFiles) await(p lease.Pool) error {
	f.release()
	o := f.openFiles(f.ctx, p)
	if errors.Is(o.err, store.ErrBusy) {
		return o.err
	}
	if o.err == nil { // the next attempt reports any other error
		f.awaited[p] = o
	}
	return nil
}

// of returns host-local's directory of a pool that may be another one than the call's, whose
// configuration is not known. Its files are used if it has a mark.
func (f *addressFiles) of(p lease.Pool) (*hostlocal.Dir, error) {
	_, known := f.open[p]
	return f.use(p, !known && hostlocal.IsMarked(p))
}

// UseFiles has the address files of a pool written although its directory may have no mark: a file
// of a lease that an operator has ended would make a lease again.
func (c *Call) UseFiles(p lease.Pool) error {
	_, err := c.files.use(p, hostlocal.Exists(p))
	return err
}

// writeBefore writes the files of changed addresses as far as that has to be done before the
// commit, and determines what has to be written after it (docs/design.md, "Address files").
func (c *Call) writeBefore() {
	addrs := map[lease.Pool][]netip.Addr{}
	for at := range c.files.changed {
		addrs[at.Pool] = append(addrs[at.Pool], at.Address)
	}
	for p, addrs := range addrs {
		slices.SortFunc(addrs, netip.Addr.Compare) // a sort of lease.Place would make the plugin 8 KB larger
		for _, a := range addrs {
			if dir := c.files.open[p].dir; dir != nil {
				c.writeFileBefore(dir, lease.Place{Pool: p, Address: a})
			}
		}
	}
}

func (c *Call) writeFileBefore(dir *hostlocal.Dir, at lease.Place) {
	l, err := c.Tx.Get(at.Pool, at.Address)
	if err != nil {
		return // damaged
	}
	file, found, err := dir.Read(at.Address)
	if err != nil {
		c.files.fail(dir, fileUnreadable(at.Address, err))
		return
	}
	_, _, named := hostlocal.ParseOwner(file.Content)
	writeAfter := func() { c.files.after = append(c.files.after, func() { c.files.write(dir, l, c.Now) }) }
	switch {
	case found && l.State != lease.None && file.IsOf(l, c.Now):
	case l.State == lease.None:
		if err := dir.Remove(at.Address); err != nil {
			c.files.warn("a file for host-local cannot be kept: %v", err)
		}
	case c.given[at]:
		writeAfter() // until the commit the file is the only record of the container
	case l.State == lease.Held:
		c.files.write(dir, l, c.Now)
	case named:
		// Otherwise, if the call were killed before it writes the new file, a DEL of the former
		// container that host-local serves would remove the file.
		hold := l
		hold.State, hold.ReleasedAt, hold.Hold = lease.Held, c.Now, lease.Window(l.CoolDown)
		c.files.write(dir, hold, c.Now)
		writeAfter()
	default:
		writeAfter()
	}
}

// write writes the file of a lease.
func (f *addressFiles) write(dir *hostlocal.Dir, l lease.Lease, now lease.Instant) {
	if err := dir.Write(l, now); err != nil {
		f.fail(dir, err)
	}
}

// fail reports that a file could not be written. The mark of the directory says so, and
// the next call writes all files again.
func (f *addressFiles) fail(dir *hostlocal.Dir, err error) {
	f.warn("a file for host-local cannot be kept: %v", err)
	f.marks[dir] = false
}

// reset prepares for an attempt: it releases the locks of the former attempt, except those that
// await has acquired since, and discards the files that the former attempt would have written.
func (f *addressFiles) reset() {
	closeAll(f.open)
	f.open, f.awaited = f.awaited, map[lease.Pool]opened{}
	f.changed, f.after, f.marks = map[lease.Place]bool{}, nil, map[*hostlocal.Dir]bool{}
}

// finish writes the files, and then the marks, after the commit, and releases host-local's locks.
// The store's lock is still held. Otherwise the next call would get the store's lock and then wait
// for host-local's, and if this process has no processor meanwhile, it and all the ones behind it
// would begin again after lockMoment.
//
// If there are many files, finishLate does that. No mark says that they are written until then.
func (f *addressFiles) finish() {
	if len(f.after) <= filesUnderLock {
		f.finishLate()
	}
}

// filesUnderLock is the largest number of files that are written while the store's lock is held.
const filesUnderLock = 64

// finishLate is finish after the store's lock was released.
func (f *addressFiles) finishLate() {
	for _, write := range f.after {
		write()
	}
	f.after = nil
	for dir, all := range f.marks {
		if err := dir.SetMark(all, f.owner()); err != nil {
			f.warn("the mark of a directory for host-local cannot be kept: %v", err)
		}
	}
	clear(f.marks)
	closeAll(f.open)
}

// keep leaves a directory locked for the next attempt.
func (f *addressFiles) keep(p lease.Pool) {
	f.awaited[p] = f.open[p]
	delete(f.open, p)
}

// release releases all locks.
func (f *addressFiles) release() {
	closeAll(f.open)
	closeAll(f.awaited)
}

func closeAll(all map[lease.Pool]opened) {
	for _, o := range all {
		if o.dir != nil {
			o.dir.Close()
		}
	}
	clear(all)
}
