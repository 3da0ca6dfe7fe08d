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
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// read returns what host-local's file of an address says, in view of its lease l, and the content.
// A file that the call itself is going to write says what its lease says. read returns
// adopt.ErrUnreadable if the file cannot be read. file is saysHeld if the pool has no directory.
func (c *Call) read(at lease.Place, l lease.Lease) (file says, content string, err error) {
	dir, err := c.files.of(at.Pool)
	if err != nil {
		return 0, "", err
	}
	if dir == nil || c.files.follows(at) {
		return saysHeld, "", nil
	}
	f, found, err := dir.Read(at.Address)
	if err != nil {
		return 0, "", fileUnreadable(at.Address, err)
	}
	id, _, named := hostlocal.ParseOwner(f.Content)
	switch {
	case !found:
		return saysNothing, "", nil
	case hostlocal.IsHold(f.Content):
		return saysHeld, f.Content, nil
	case !named:
		return saysNobody, f.Content, nil
	case l.State != lease.None && hostlocal.Names(f.Content, l.Holder.ContainerID, l.Holder.IfName) &&
		!c.startedAgain(l, f.Content):
		return saysHolder, f.Content, nil
	case c.isLeftOver(at, id, f.Content):
		return saysLeftOver, f.Content, nil
	}
	return saysOther, f.Content, nil
}

// startedAgain reports whether host-local has given the address of a lease of an earlier boot to
// the same container in this one. Runtimes without pods, such as nerdctl, start containers again
// after a boot, with their ids.
func (c *Call) startedAgain(l lease.Lease, content string) bool {
	return c.Now.BootID != "" && l.Holder.BootID != c.Now.BootID &&
		c.sources.LifeOf(l.Pool.Network, l.Address, content) == lease.Alive
}

// isLeftOver reports whether the container that host-local's file of an address names has had an
// address of the pool in an earlier boot, so that the file came back with a power cut: these files
// are not synced, and the container id of a sandbox does not come back. If libcni's cache may show
// the container alive, isLeftOver reports false.
func (c *Call) isLeftOver(at lease.Place, container, content string) bool {
	if c.Now.BootID == "" {
		return false
	}
	if c.earlier == nil {
		c.earlier = map[lease.Pool]map[string]bool{}
		c.Tx.EarlierBoots(c.Now.BootID, func(n store.Entry) {
			p := n.Place().Pool
			if c.earlier[p] == nil {
				c.earlier[p] = map[string]bool{}
			}
			c.earlier[p][n.Container] = true
		})
	}
	return c.earlier[at.Pool][container] && c.sources.LifeOf(at.Pool.Network, at.Address, content) == lease.Dead
}

// Settle compares leases with host-local's files of their addresses, and does what judge says. The
// caller must read the leases again.
func (c *Call) Settle(leases []lease.Lease) error {
	for _, l := range leases {
		if err := c.settle(l); err != nil {
			return err
		}
	}
	return nil
}

// SettleUnfiled is Settle for those leases of one pool whose files are missing. It lists the
// directory once, and reads no file. It returns the other leases, which have not changed.
func (c *Call) SettleUnfiled(leases []lease.Lease) (others []lease.Lease, err error) {
	missing := map[netip.Addr]bool{}
	for _, l := range hostlocal.Missing(leases) {
		missing[l.Address] = true
		if err := c.settle(l); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(leases, func(l lease.Lease) bool { return missing[l.Address] }), nil
}

func (c *Call) settle(l lease.Lease) error {
	file, content, err := c.read(l.Place(), l)
	if errors.Is(err, adopt.ErrUnreadable) {
		c.files.warn("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	switch judge(l.State, file, l.Holder.Netns.Ino != 0, func() lease.Liveness { return c.Evidence.Prove(l) }) {
	case imports:
		return c.giveAway(l, content)
	case release:
		e := lease.Release{Holder: l.Holder, LastHolder: c.Evidence.Prove(l)}
		_, err := c.End(l, e, c.Now, "host-local has processed its DEL")
		return err
	case follow:
		c.files.change(l.Place())
	}
	return nil
}

// GiveAway reports whether host-local has assigned the address of a lease to another container. If
// it has, the lease is replaced by one of that container. GiveAway returns adopt.ErrUnreadable if
// host-local's file of the address cannot be read.
func (c *Call) GiveAway(l lease.Lease) (given bool, err error) {
	file, content, err := c.read(l.Place(), l)
	if err != nil || file != saysOther {
		return false, err
	}
	return true, c.giveAway(l, content)
}

// giveAway replaces a lease by one of the container that host-local's file of the address names.
func (c *Call) giveAway(l lease.Lease, content string) error {
	c.files.warn("%s: host-local has given the address to another container while %s/%s had it", l.Address,
		l.Namespace, l.Name)
	if err := c.Tx.Put(l.Pool, l.Address, c.foreign(l.Pool, l.Address, content)); err != nil {
		return err
	}
	return c.Log(l, store.EventRevoked, "host-local has given it to another container")
}

func fileUnreadable(a netip.Addr, err error) error {
	return fmt.Errorf("%w: host-local's file of %s cannot be read, so the address counts as in use: %w",
		adopt.ErrUnreadable, a, err)
}

// MayGiveAny returns adopt.ErrUnreadable if host-local's lock of a pool cannot be opened, because
// its directory is read-only, for example. Then no address is given: host-local could give the same
// one, and a file that still names the former container would be taken for host-local's.
func (c *Call) MayGiveAny(p lease.Pool) error {
	if err := c.files.open[p].err; err != nil {
		return cmp.Or(ProbeLock(p), noLock(p, err))
	}
	return nil
}

// ProbeLock returns the error that MayGiveAny would return in an ADD. It takes no lock, and changes
// nothing.
func ProbeLock(p lease.Pool) error {
	if err := hostlocal.ProbeLock(p); err != nil {
		return noLock(p, err)
	}
	return nil
}

func noLock(p lease.Pool, err error) error {
	return fmt.Errorf("%w: host-local's lock of network %s cannot be opened, so no address is assigned: %w",
		adopt.ErrUnreadable, p.Network, err)
}

// MayGive returns nil if host-local's file of a lease's address does not prevent the assignment of
// the address. It returns lease.ErrTaken if the file names another container, and lease.ErrTaken
// with adopt.ErrUnreadable if the file cannot be read.
func (c *Call) MayGive(l lease.Lease) error {
	switch file, _, err := c.read(l.Place(), l); {
	case errors.Is(err, store.ErrBusy):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", lease.ErrTaken, err)
	case file == saysOther:
		return lease.ErrTaken
	}
	return nil
}

// foreign returns the lease for an address that host-local has assigned, with the content of its
// file.
func (c *Call) foreign(p lease.Pool, addr netip.Addr, content string) lease.Lease {
	return adopt.Foreign(c.sources, p, addr, content, c.Now, NewID).Lease
}

// Admit imports the file of an address without a lease, if there is one, and reports whether the
// address is in use. A file that is left over goes. If the file cannot be read, or names nobody,
// Admit imports a lease with an unknown owner.
func (c *Call) Admit(p lease.Pool, addr netip.Addr) (inUse bool, err error) {
	at, why := lease.Place{Pool: p, Address: addr}, "host-local has given it to the container"
	file, content, err := c.read(at, lease.Lease{})
	switch {
	case errors.Is(err, adopt.ErrUnreadable):
		why = err.Error()
		c.files.warn("%s", why)
	case err != nil:
		return false, err
	case judge(lease.None, file, false, nil) == follow:
		c.files.change(at)
		return false, nil
	}
	l := c.foreign(p, addr, content)
	if err := c.Tx.Put(p, addr, l); err != nil {
		return false, err
	}
	c.files.imported[at] = true
	return true, c.Log(l, store.EventAdopted, why)
}

// AdmitFiles imports the files of addresses of a pool that do not belong to their leases. addrs may
// be of another time, as FilesOf returned them.
func (c *Call) AdmitFiles(p lease.Pool, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	if dir, err := c.files.use(p, true); err != nil || dir == nil {
		return err
	}
	for _, addr := range addrs {
		if err := c.admitFile(p, addr); err != nil {
			return err
		}
	}
	return nil
}

// AdmitAll is AdmitFiles for all files of a pool.
func (c *Call) AdmitAll(p lease.Pool) error {
	dir, err := c.files.of(p)
	if err != nil || dir == nil {
		return err
	}
	addrs, err := dir.Addresses()
	if err != nil {
		c.files.warn("%v", err)
	}
	return c.AdmitFiles(p, addrs)
}

// admitFile imports the file of an address, or compares it with the lease of the address.
func (c *Call) admitFile(p lease.Pool, addr netip.Addr) error {
	l, err := c.Tx.Get(p, addr)
	if err == nil && l.State == lease.None {
		_, err = c.Admit(p, addr)
	} else if err == nil {
		err = c.settle(l)
	}
	return err
}

// AdoptFile adopts the file of an address that host-local has assigned, unless the address has a
// lease. If the store does not know the pool, AdoptFile adopts the whole pool, as far as that can
// be done without its configuration; the first ADD of the pool does the rest. It returns
// ErrNoHostView if it is not proven that the process sees the host.
func (c *Call) AdoptFile(p lease.Pool, addr netip.Addr) error {
	if err := c.mayLearn(); err != nil {
		return err
	}
	dir, err := c.lockFiles(p)
	if err != nil {
		return err
	}
	if !dir.IsMarked() || !c.Tx.Adopted(p) {
		if err := c.RecordNamespaces(); err != nil {
			return err
		}
		if err := c.adopt(Existing(p, nil), dir); err != nil {
			return err
		}
	}
	return c.admitFile(p, addr)
}

// AssignedAlive returns the addresses of a pool that host-local has assigned to containers which
// are alive according to libcni's cache, until the given time and except those that isLeased
// reports to have a lease. Only pool, address and holder are set. It takes no lock, and ignores
// what cannot be read.
func (n *Node) AssignedAlive(p lease.Pool, until time.Time, isLeased func(netip.Addr) bool) (out []lease.Lease) {
	dir, err := hostlocal.OpenUnlocked(p)
	if dir == nil || err != nil {
		return nil
	}
	addrs, _ := dir.Addresses()
	sources := n.sources(Scope{})
	for _, addr := range addrs {
		if isLeased(addr) {
			continue
		}
		file, _, err := dir.Read(addr)
		id, ifName, ok := hostlocal.ParseOwner(file.Content)
		if err != nil || !ok || file.Modified.After(until) {
			continue
		}
		if sources.LifeOf(p.Network, addr, file.Content) == lease.Alive {
			holder := lease.Holder{ContainerID: id, IfName: ifName}
			out = append(out, lease.Lease{Pool: p, Address: addr, Holder: holder})
		}
	}
	return out
}

// FilesOf returns the addresses whose files name the attachment. It takes no lock, so that the
// caller must read the files again before it acts on them (AdmitFiles).
func (n *Node) FilesOf(in Scope, who lease.Attachment) (named []netip.Addr) {
	dir, err := hostlocal.OpenUnlocked(in.Pool)
	if dir == nil {
		if err != nil {
			n.Warnf("%v", err)
		}
		return nil
	}
	addrs, err := dir.Addresses()
	if err != nil {
		n.Warnf("%v", err)
	}
	for _, addr := range addrs {
		file, _, err := dir.Read(addr)
		if err != nil {
			n.Warnf("%v", fileUnreadable(addr, err))
		}
		if hostlocal.Names(file.Content, who.ContainerID, who.IfName) {
			named = append(named, addr)
		}
	}
	return named
}
