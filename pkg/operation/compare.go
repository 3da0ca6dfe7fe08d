package operation

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// addressFile is host-local's file of an address, in view of the address's lease.
type addressFile struct {
	says says
	hostlocal.File
	of importer.Container // if it says saysOther or saysNobody
}

// namesHolder reports whether the file names the holder of a lease, in whichever of its lives.
func (f addressFile) namesHolder(l lease.Lease) bool {
	return hostlocal.Names(f.Content, l.Holder.ContainerID, l.Holder.IfName)
}

// margin is how much the times of files and those of the store may differ.
const margin = 10 * time.Second

// read returns host-local's file of an address, in view of its lease l. A file that the call itself
// is going to write says what its lease says. read returns importer.ErrUnreadable if the file
// cannot be read. The file says saysLease if the pool has no directory.
func (c *Call) read(at lease.Place, l lease.Lease) (f addressFile, err error) {
	dir, err := c.files.of(at.Pool)
	if err != nil {
		return f, err
	}
	if f.says = saysLease; dir == nil {
		return f, nil
	}
	found := false
	if f.File, found, err = dir.Read(at.Address); err != nil {
		f.says, f.of = saysNobody, c.sourcesOf(at.Pool).Named(at.Pool, at.Address, hostlocal.File{})
		return f, fileUnreadable(at.Address, err)
	}
	if c.files.changed[at] {
		return f, nil
	}
	_, _, named := hostlocal.ParseOwner(f.Content)
	isHolder := l.State != lease.None && f.namesHolder(l)
	switch {
	case !found:
		f.says = saysNothing
		return f, nil
	case hostlocal.IsHold(f.Content), isHolder && !c.mayBeNewer(f.File, l):
		return f, nil
	case !named:
		f.says = saysNobody
	default:
		f.says = saysOther
	}
	f.of = c.sourcesOf(at.Pool).Named(at.Pool, at.Address, f.File)
	switch {
	case isHolder && l.State == lease.Bound && !l.OfEarlierBoot(c.Now.BootID) && !l.Key().IsZero() && !f.of.IsShown():
		f.says = saysLease // pods get new ids: the file was copied, or written again by an earlier version
	case f.of.Life == lease.Alive || !named:
	case isHolder && (f.of.Life == lease.Dead || l.OfEarlierBoot(c.Now.BootID) && c.ageOf(f.Modified) != ofThisBoot):
		f.says = saysLease
	case c.isLeftOver(at.Pool, f.File):
		f.of.Life = lease.Dead
	}
	return f, nil
}

// isLeftOver reports whether a file is of an earlier boot, in which the journal has its container:
// a power cut brings back files that are not synced.
func (c *Call) isLeftOver(p lease.Pool, f hostlocal.File) bool {
	id, _, named := hostlocal.ParseOwner(f.Content)
	return named && c.ageOf(f.Modified) == ofEarlierBoot && c.earlier[former{p, id}]
}

// mayBeNewer reports whether a file that names the holder of a lease may be of a later life of that
// container, to which host-local has given the address again. Runtimes without pods, such as
// nerdctl, start containers again with their ids, also after a boot.
func (c *Call) mayBeNewer(f hostlocal.File, l lease.Lease) bool {
	since := l.ReleasedAt
	if l.State == lease.Bound {
		since = l.BoundAt
	}
	return l.OfEarlierBoot(c.Now.BootID) ||
		f.Modified.After(since.Wall.Add(time.Second)) && c.ageOf(f.Modified) == ofThisBoot &&
			(l.State == lease.Held || c.Evidence.Prove(l) == lease.Dead)
}

// age is when a file was written.
type age int

const (
	ofUnknownBoot age = iota // the wall clock was not set then, or is not now
	ofThisBoot
	ofEarlierBoot
)

// ageOf returns when a file was written.
func (c *Call) ageOf(written time.Time) age {
	boot := c.Now.Wall.Add(-c.Now.Boot - margin)
	c.readJournal()
	switch {
	case !c.Now.IsSet() || !lease.Instant{Wall: written}.IsSet() || written.After(c.Now.Wall.Add(margin)):
		return ofUnknownBoot
	case !written.Before(boot) && !written.Before(c.ended.Add(margin)):
		return ofThisBoot
	case c.began.Before(c.ended), c.began.Before(boot): // the clock was set
		return ofUnknownBoot
	}
	return ofEarlierBoot
}

// former is a container of a pool that the journal has.
type former struct {
	pool      lease.Pool
	container string
}

// readJournal sets earlier, ended and began.
func (c *Call) readJournal() {
	if c.earlier != nil {
		return
	}
	c.earlier, c.began = map[former]bool{}, c.Now.Wall
	if c.Now.BootID == "" {
		return
	}
	c.Tx.EachBoot(c.Now.BootID, func(n store.Entry, isEarlier bool) {
		switch {
		case isEarlier:
			c.earlier[former{n.Place().Pool, n.Container}], c.ended = true, n.Time
		case n.Time.Before(c.began):
			c.began = n.Time
		}
	})
}

// compare returns what has to be done about an address with the lease l because of its file. holder
// is as in judge.
func (c *Call) compare(at lease.Place, l lease.Lease, holder func() lease.Liveness) (verdict, addressFile, error) {
	f, err := c.read(at, l)
	if err != nil {
		return disputed, f, err
	}
	return judge(l.State, f.says, f.of.Life, l.Holder.Netns.Ino != 0, holder), f, nil
}

// isGone is for compare, if the caller knows that the holder is dead or that its DEL has come.
func isGone() lease.Liveness { return lease.Dead }

// resolve compares an address with the lease l with its file, and does what judge says. It warns of
// a file that cannot be read: an address without a lease gets one of an unknown owner. A container
// that hasEnded reports to have had its DEL gets a lease of an address without one whatever is
// known of it, and disputes none; hasEnded may be nil.
func (c *Call) resolve(at lease.Place, l lease.Lease, hasEnded func(addressFile) bool) (verdict, addressFile, error) {
	v, f, err := c.compare(at, l, func() lease.Liveness { return c.Evidence.Prove(l) })
	isEnded := err == nil && f.says == saysOther && hasEnded != nil && hasEnded(f)
	switch {
	case errors.Is(err, importer.ErrUnreadable):
		if c.files.warn("%v", err); l.State != lease.None {
			return v, f, nil
		}
		v = given
	case err != nil:
		return v, f, err
	case isEnded && l.State == lease.None:
		v = given
	case isEnded && (v == disputed || l.State == lease.Bound && f.namesHolder(l)):
		v = follow // the address is the holder's alone
	}
	switch err = nil; v {
	case given:
		err = c.give(at, l, f, isEnded && l.State == lease.None)
	case release:
		e := lease.Release{Holder: l.Holder, LastHolder: c.Evidence.Prove(l)}
		_, err = c.End(l, e, c.Now, "host-local has processed its DEL")
	case follow:
		if l.State == lease.None || !f.IsOf(l, c.Now) {
			c.files.changed[at] = true
		}
	}
	return v, f, err
}

// CompareFiles compares leases with host-local's files of their addresses, and does what judge
// says. The caller must read the leases again.
func (c *Call) CompareFiles(leases []lease.Lease) error {
	for _, l := range leases {
		if _, _, err := c.resolve(l.Place(), l, nil); err != nil {
			return err
		}
	}
	return nil
}

// WriteMissing is CompareFiles for a lease whose file has been missing for long: unless the lease
// ends, the file is written again.
func (c *Call) WriteMissing(l lease.Lease) error {
	v, _, err := c.resolve(l.Place(), l, nil)
	if v == missing {
		c.files.changed[l.Place()] = true
	}
	return err
}

// CompareOwn is CompareFiles for a lease whose holder repeats its ADD, so that no DEL of it is on
// its way: a missing file is written. It returns the lease, which is another container's if
// host-local has given that the address. It returns importer.ErrUnreadable if host-local's file of
// the address cannot be read.
func (c *Call) CompareOwn(l lease.Lease) (lease.Lease, error) {
	v, f, err := c.compare(l.Place(), l, isGone)
	switch {
	case err == nil && f.says == saysNothing:
		c.files.changed[l.Place()] = true
		return l, nil
	case v != given:
		return l, err
	}
	if err := c.give(l.Place(), l, f, false); err != nil {
		return l, err
	}
	return c.Tx.Get(l.Pool, l.Address)
}

// give makes the lease of an address that of the container in its file, which host-local has given
// the address to. The lease has a key if the container is alive or hasEnded, because then libcni's
// entry of it is not one of a former life, unless another container's lease has the key: a bound
// one keeps it, and a hold ends with the pod's next ADD, but not because of a container that
// hasEnded.
func (c *Call) give(at lease.Place, old lease.Lease, f addressFile, hasEnded bool) error {
	isAlive := f.of.Life == lease.Alive
	next := f.of.Lease(at.Pool, c.Now, isAlive || hasEnded, c.scope.CoolDown)
	others, err := c.othersOf(at, next)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(others, func(o lease.Lease) bool { return o.State == lease.Bound || !isAlive }) {
		next = f.of.Lease(at.Pool, c.Now, false, c.scope.CoolDown)
	}
	next.ID = NewID()
	next.BoundAt.Boot-- // what the call itself binds is later
	err = c.Tx.Put(at.Pool, at.Address, next)
	c.SetUsed(at.Pool)
	if c.given[at] = old.State == lease.None; c.given[at] {
		return cmp.Or(err, c.Log(next, store.EventImported, "host-local has given it to the container"))
	}
	c.files.warn("%s %s, and host-local has given it to container %s", at.Address, old.Describe("", c.Now),
		next.Holder.ContainerID)
	return cmp.Or(err, c.Log(old, store.EventRevoked, "host-local has given it to another container"))
}

// othersOf returns the leases of other containers that have the key which a lease of the address
// would have. A reservation name may have several.
func (c *Call) othersOf(at lease.Place, next lease.Lease) ([]lease.Lease, error) {
	key := next.Key()
	if key.IsZero() || key.ReserveAs != "" {
		return nil, nil
	}
	others, err := c.Tx.ByKey(key)
	return slices.DeleteFunc(others, func(o lease.Lease) bool {
		return o.Address == at.Address || o.Holder.ContainerID == next.Holder.ContainerID
	}), err
}

func fileUnreadable(a netip.Addr, err error) error {
	return fmt.Errorf("%w: host-local's file of %s cannot be read, so the address counts as in use: %w",
		importer.ErrUnreadable, a, err)
}

// MayGiveAny returns importer.ErrUnreadable if host-local's lock of a pool cannot be opened,
// because its directory is read-only, for example, or the directory is another node's
// (ErrOtherNode). Then no address is given: host-local could give the same one, and a file that
// still names the former container would be taken for host-local's.
func (c *Call) MayGiveAny(p lease.Pool) error {
	err := c.files.open[p].err
	if err == nil || errors.Is(err, ErrOtherNode) {
		return err
	}
	return cmp.Or(ProbeLock(p), noLock(p, err))
}

// ProbeLock returns the error that MayGiveAny would return in an ADD. It takes no lock, and changes
// nothing.
func ProbeLock(p lease.Pool) error {
	return noLock(p, hostlocal.ProbeLock(p))
}

func noLock(p lease.Pool, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: host-local's lock of network %s cannot be opened, so no address is assigned: %w",
		importer.ErrUnreadable, p.Network, err)
}

// MayGive returns nil if neither host-local's file of a lease's address nor another data directory
// of the network prevents the assignment of the address, once the holder is gone. It returns
// lease.ErrTaken if another container has it, and lease.ErrTaken with importer.ErrUnreadable if the
// file cannot be read.
func (c *Call) MayGive(l lease.Lease) error {
	switch v, _, err := c.compare(l.Place(), l, isGone); {
	case errors.Is(err, store.ErrBusy):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", lease.ErrTaken, err)
	case v == given:
		return fmt.Errorf("%w: host-local's file of it names another container", lease.ErrTaken)
	case c.IsElsewhere(l.Pool, l.Address):
		return fmt.Errorf("%w: a container has it with another dataDir", lease.ErrTaken)
	}
	return nil
}

// ImportFiles compares addresses of a pool with their files, and makes leases of those that
// host-local has given. addrs may be of another time, as FilesOf returned them. hasEnded reports
// whether the container that a file names has had its DEL, so that the caller releases its lease.
func (c *Call) ImportFiles(p lease.Pool, addrs []netip.Addr, hasEnded func(content string) bool) error {
	return c.importFiles(p, addrs, func(f addressFile) bool { return hasEnded != nil && hasEnded(f.Content) })
}

func (c *Call) importFiles(p lease.Pool, addrs []netip.Addr, hasEnded func(addressFile) bool) error {
	if len(addrs) == 0 {
		return nil
	}
	if dir, err := c.files.use(p, true); err != nil || dir == nil {
		return err
	}
	for _, addr := range addrs {
		l, err := c.Tx.Get(p, addr)
		if err == nil {
			_, _, err = c.resolve(lease.Place{Pool: p, Address: addr}, l, hasEnded)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ImportAlive makes a lease of an address whose container is alive by libcni's cache, for the
// agent, and reports whether it may have. A lease of which only the file was known gets the pod and
// the namespace, and one that has the namespace gets the pod once no other bound lease has the
// pod's key. It returns ErrNoHostView if it is not proven that the process sees the host.
func (c *Call) ImportAlive(p lease.Pool, addr netip.Addr) (done bool, err error) {
	if err := c.mayImport(); err != nil {
		return false, err
	}
	dir, err := c.lockFiles(p)
	if err != nil {
		return false, err
	}
	at := lease.Place{Pool: p, Address: addr}
	l, err := c.Tx.Get(p, addr)
	if err != nil {
		return false, err
	}
	if l.State != lease.Bound || !l.Key().IsZero() {
		return true, c.ImportFiles(p, []netip.Addr{addr}, nil)
	}
	file, _, err := dir.Read(addr)
	f := addressFile{File: file, of: c.sourcesOf(p).Named(p, addr, file)}
	if err != nil || !f.of.IsShown() || !hostlocal.Names(file.Content, l.Holder.ContainerID, l.Holder.IfName) {
		return false, err
	}
	if l.Holder.Netns.Ino != 0 {
		named := f.of.Lease(p, c.Now, true, 0)
		others, err := c.othersOf(at, named)
		isBound := func(o lease.Lease) bool { return o.State == lease.Bound }
		if err != nil || named.Key().IsZero() || slices.ContainsFunc(others, isBound) {
			return false, err
		}
	}
	return true, c.give(at, lease.Lease{}, f, false)
}

// AssignedAlive returns the leases that containers of a pool would have which are alive according
// to libcni's cache, and to which host-local has given their addresses until the given time. It
// leaves out addresses that isLeased reports to have a lease. It takes no lock, and ignores what
// cannot be read. caches are the directories of libcni's cache that the configuration names.
func (n *Node) AssignedAlive(p lease.Pool, caches []string, until time.Time,
	isLeased func(netip.Addr) bool) (out []lease.Lease) {
	sources := n.sources(caches)
	_ = eachFile(p, func(addr netip.Addr, f hostlocal.File) {
		if _, _, ok := hostlocal.ParseOwner(f.Content); !ok || f.Modified.After(until) || isLeased(addr) {
			return
		}
		if of := sources.Named(p, addr, f); of.IsShown() {
			out = append(out, of.Lease(p, lease.Instant{}, true, 0))
		}
	})
	return out
}

// FilesOf returns the addresses of a pool whose files match. It takes no lock, so that the caller
// must read the files again before it acts on them (ImportFiles).
func (n *Node) FilesOf(p lease.Pool, match func(content string) bool) (named []netip.Addr) {
	err := eachFile(p, func(addr netip.Addr, f hostlocal.File) {
		if match(f.Content) {
			named = append(named, addr)
		}
	})
	if err != nil {
		n.Warnf("%v", err)
	}
	return named
}

// IsCached reports whether libcni's cache may have an entry of an attachment in the network of the
// call, which it has from the end of an ADD on.
func (c *Call) IsCached(who lease.Attachment) bool {
	p := c.scope.Pool
	return slices.ContainsFunc(c.sourcesOf(p).CacheDirs, func(dir string) bool {
		_, err := os.Lstat(filepath.Join(dir, p.Network+"-"+who.ContainerID+"-"+who.IfName))
		return !files.IsMissing(err)
	})
}

// Names returns a match for the files that name an attachment.
func Names(who lease.Attachment) func(content string) bool {
	return func(content string) bool { return hostlocal.Names(content, who.ContainerID, who.IfName) }
}

// eachFile calls fn for each file of a pool that can be read, without a lock.
func eachFile(p lease.Pool, fn func(netip.Addr, hostlocal.File)) error {
	dir, err := hostlocal.OpenUnlocked(p)
	if dir == nil {
		return err
	}
	addrs, err := dir.Addresses()
	for _, addr := range addrs {
		f, found, e := dir.Read(addr)
		if e != nil {
			err = errors.Join(err, fileUnreadable(addr, e))
		} else if found {
			fn(addr, f)
		}
	}
	return err
}
