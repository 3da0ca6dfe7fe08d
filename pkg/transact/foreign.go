package transact

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// foreignTo reports whether host-local's file of a lease's address names another container, because
// host-local has assigned the address to that container, and returns the content of the file. It
// returns adopt.ErrUnreadable if the file cannot be read.
func (c *Call) foreignTo(l lease.Lease) (content string, foreign bool, err error) {
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
	foreign = file.IsForeign(l, c.Now.BootID,
		func() hostlocal.History { return c.historyOf(l.Place()) },
		func() bool { return c.sources.LifeOf(l.Pool.Network, l.Address, file.Content) != lease.Dead })
	return file.Content, foreign, nil
}

// errReassigned is returned by an attempt that would have changed a lease whose address host-local
// has assigned to another container. The attempt is rolled back, and the next attempt begins by
// adopting the file of that address (adoptReassigned). The error wraps store.ErrBusy, for a call
// whose time is over.
var errReassigned = fmt.Errorf("%w: host-local has assigned an address to another container", store.ErrBusy)

// adoptReassigned adopts the files of the addresses for which earlier attempts returned
// errReassigned.
func (c *Call) adoptReassigned() error {
	for a := range c.mirrors.reassigned {
		l, err := c.Tx.Get(a.Pool, a.Address)
		if err == nil {
			_, err = c.AdoptForeign(l)
		}
		if err != nil && !errors.Is(err, adopt.ErrUnreadable) {
			return err
		}
	}
	return nil
}

// AdoptForeign reports whether host-local has assigned the address of a lease to another container.
// If it has, AdoptForeign replaces the lease by one of that container. It returns
// adopt.ErrUnreadable if host-local's file of the address cannot be read.
func (c *Call) AdoptForeign(l lease.Lease) (foreign bool, err error) {
	content, foreign, err := c.foreignTo(l)
	if err != nil || !foreign {
		return false, err
	}
	next := c.foreign(l.Pool, l.Address, content)
	if l.State == lease.Bound && l.Holder == next.Holder {
		return true, nil // the owners of both are unknown
	}
	c.mirrors.warn("%s: host-local has given the address to another container while %s/%s had it", l.Address,
		l.Namespace, l.Name)
	if err := c.Tx.Put(l.Pool, l.Address, next); err != nil {
		return true, err
	}
	delete(c.mirrors.changed[l.Pool], l.Address) // the file is up to date
	return true, c.Log(l, store.EventRevoked, "host-local has given it to another container")
}

func fileUnreadable(a netip.Addr, err error) error {
	return fmt.Errorf("%w: host-local's file of %s cannot be read, so the address counts as in use: %w",
		adopt.ErrUnreadable, a, err)
}

// MayGive returns nil if host-local's file of a lease's address does not prevent the assignment of
// the address. It returns lease.ErrTaken if the file names another container, and lease.ErrTaken
// with adopt.ErrUnreadable if the file cannot be read.
func (c *Call) MayGive(l lease.Lease) error {
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

// removeLeftover reports whether the only evidence for a lease that is about to be adopted is a
// file in host-local's directory that leasehold itself wrote and removed, and that reappeared
// because a power failure undid the removal (hostlocal.File.IsStale). If so, removeLeftover removes
// the file again. A lease whose namespace is known has other evidence.
func (c *Call) removeLeftover(l lease.Lease, mirror *hostlocal.Dir) bool {
	if mirror == nil || l.State != lease.Bound || l.Holder.Netns.Ino != 0 {
		return false
	}
	file, found, err := mirror.Read(l.Address)
	ours := err == nil && found && hostlocal.Names(file.Content, l.Holder.ContainerID, l.Holder.IfName) &&
		file.IsStale(c.historyOf(l.Place()))
	if ours {
		mirror.Remove(l.Address)
	}
	return ours
}

// historyOf returns the journal's history of an address. The journal is read once in a transaction.
func (c *Call) historyOf(at lease.Place) hostlocal.History {
	if c.journal == nil {
		c.journal = map[lease.Place]hostlocal.History{}
		c.Tx.Journal(func(n store.Entry) bool {
			c.addHistory(n)
			return true
		})
	}
	return c.journal[at]
}

// addHistory adds an entry of the journal, if the journal was read.
func (c *Call) addHistory(n store.Entry) {
	if c.journal == nil {
		return
	}
	h := c.journal[n.Place()]
	switch n.Event {
	case store.EventBound, store.EventKept, store.EventTakenOver:
		h.Owners = append(h.Owners, lease.Attachment{ContainerID: n.Container, IfName: n.IfName})
	}
	h.Last = n.Time
	c.journal[n.Place()] = h
}

// foreign returns the lease for an address that host-local has assigned, with the content of its
// file.
func (c *Call) foreign(p lease.Pool, addr netip.Addr, content string) lease.Lease {
	return adopt.Foreign(c.sources, p, addr, content, c.Now, NewID).Lease
}

// Admit adopts the file of an address without a lease, if there is one, and reports whether the
// address is in use. If leasehold wrote the file, the file is outdated: Admit removes it, and the
// address is free. If the file cannot be read, Admit adopts a lease with an unknown owner.
func (c *Call) Admit(p lease.Pool, addr netip.Addr) (inUse bool, err error) {
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
	case hostlocal.IsHold(file.Content) || file.IsStale(c.historyOf(lease.Place{Pool: p, Address: addr})):
		mirror.Remove(addr)
		return false, nil
	}
	l := c.foreign(p, addr, file.Content)
	if err := c.Tx.Put(p, addr, l); err != nil {
		return false, err
	}
	c.mirrors.adopted[lease.Place{Pool: p, Address: addr}] = true
	return true, c.Log(l, store.EventAdopted, why)
}

// AdmitHolder adopts the files of an attachment whose ADD was served by host-local. files are the
// addresses that FilesOf returned; AdmitHolder ignores those whose files no longer name the
// attachment.
func (c *Call) AdmitHolder(p lease.Pool, who lease.Attachment, files []netip.Addr) error {
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

// AdmitFiles adopts all files of a pool that do not belong to the leases of their addresses.
func (c *Call) AdmitFiles(p lease.Pool) error {
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

// admitFile adopts the file of an address, unless it belongs to the lease of the address.
func (c *Call) admitFile(p lease.Pool, addr netip.Addr) error {
	l, err := c.Tx.Get(p, addr)
	if err == nil && l.State == lease.None {
		_, err = c.Admit(p, addr)
	} else if err == nil {
		err = c.giveUp(l)
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
	mirror, err := c.lockFiles(p)
	if err != nil {
		return err
	}
	if _, marked := mirror.Mark(); !marked || !c.Tx.Adopted(p) {
		if err := c.RecordNamespaces(); err != nil {
			return err
		}
		if err := c.adopt(Existing(p, nil), mirror); err != nil {
			return err
		}
	}
	return c.admitFile(p, addr)
}

// giveUp replaces a lease by one of the container to which host-local has assigned its address. It
// does nothing if host-local has not assigned the address, or if the lease's own holder is alive.
func (c *Call) giveUp(l lease.Lease) error {
	_, foreign, err := c.foreignTo(l)
	switch {
	case errors.Is(err, adopt.ErrUnreadable):
		c.mirrors.warn("%v", err)
		return nil
	case err != nil:
		return err
	case foreign && c.QuickState(l) != lease.Alive:
		_, err = c.AdoptForeign(l)
	}
	return err
}

// ReleaseUnmirrored compares bound leases with host-local's files. A lease whose file is gone is
// released, because host-local has served its DEL; but if the holder may be alive, the file is
// written again instead. A lease whose file names another container is replaced (giveUp). The
// caller must read the leases again.
func (c *Call) ReleaseUnmirrored(leases []lease.Lease) error {
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
		switch life, now := c.Prove(l), c.Now; {
		case life == lease.Alive, life == lease.Unknown && l.Holder.Netns.Ino != 0:
			c.mirrors.change(l.Pool, l.Address, false)
		case l.Holder.ContainerID == "" && life == lease.Dead: // no DEL names its holder
			_, err = c.Orphan(l, life, why)
		case l.Holder.ContainerID == "":
			err = c.Record(l, lease.Lease{}, store.EventReleased, why)
		default:
			err = c.ReleaseLease(l, life, now, why)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Assigned is an address that host-local has assigned to a container.
type Assigned struct {
	Address   netip.Addr
	Container lease.Attachment
}

// AssignedAlive returns the addresses of a pool that host-local has assigned to containers which
// are alive according to libcni's cache, until the given time and except those that isLeased
// reports to have a lease. It takes no lock, and ignores what cannot be read.
func (n *Node) AssignedAlive(p lease.Pool, until time.Time, isLeased func(netip.Addr) bool) (out []Assigned) {
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
			out = append(out, Assigned{addr, lease.Attachment{ContainerID: id, IfName: ifName}})
		}
	}
	return out
}

// FilesOf returns the addresses whose files name the attachment. It takes no lock, so that the
// caller must read the files again before it acts on them (AdmitHolder).
func (n *Node) FilesOf(in Scope, who lease.Attachment) (named []netip.Addr) {
	if !in.Mirror {
		return nil
	}
	mirror, err := hostlocal.OpenUnlocked(in.Pool)
	if mirror == nil {
		if err != nil {
			n.Warnf("%v", err)
		}
		return nil
	}
	addrs, err := mirror.Addresses()
	if err != nil {
		n.Warnf("%v", err)
	}
	for _, addr := range addrs {
		file, _, err := mirror.Read(addr)
		if err != nil {
			n.Warnf("%v", fileUnreadable(addr, err))
		}
		if hostlocal.Names(file.Content, who.ContainerID, who.IfName) {
			named = append(named, addr)
		}
	}
	return named
}
