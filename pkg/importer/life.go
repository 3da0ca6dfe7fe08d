package importer

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// lifeOf returns what is known of the container that host-local's file of an address names. It is a
// pure function (docs/design.md, "Address files").
//
//	alive    an entry of the container and interface in libcni's cache names a namespace that
//	         exists; or an interface in a network namespace has the address
//	dead     an entry of the container and interface that names the address, and is not older than
//	         the file, names a namespace that is gone; and no interface has the address
//	unknown  all else: something cannot be read, or there is no such entry. While an ADD is under
//	         way there is none
//
// entries are those of the container, as far as they can be read; otherwise unread is set. seen
// says whether an interface has the address.
func lifeOf(file candidate, entries []candidate, unread bool, seen lease.Liveness) lease.Liveness {
	isDead := false
	for _, e := range entries {
		switch {
		case e.ContainerID != file.ContainerID || file.IfName != "" && e.IfName != file.IfName:
		case e.Kind == fromLiveCache && e.Netns.Ino != 0:
			return lease.Alive
		case e.Kind == fromLiveCache:
			unread = true // the namespace
		case e.Address == file.Address && !e.Modified.Before(file.Modified):
			isDead = true
		}
	}
	switch {
	case seen == lease.Alive:
		return lease.Alive
	case isDead && !unread && seen == lease.Dead:
		return lease.Dead
	}
	return lease.Unknown
}

// Container is the container that host-local's file of an address names.
type Container struct {
	Life lease.Liveness

	file  candidate
	entry *candidate // libcni's entry of it; one that names the address is preferred
	seen  *candidate // an interface that has the address; that of the entry's namespace is preferred
}

// Named returns the container that a file names.
func (s Sources) Named(p lease.Pool, addr netip.Addr, f hostlocal.File) Container {
	file, _ := candidateOf(f.Content)
	file.Address, file.Modified = addr, f.Modified
	c := Container{file: file}
	entries, problems := s.cacheEntry(p.Network, file.ContainerID, file.IfName)
	for i, e := range entries {
		isOf := e.Address == addr
		if c.entry == nil || isOf && (c.entry.Address != addr || newestFirst(e, *c.entry) < 0) {
			c.entry = &entries[i]
		}
	}
	if c.Life = lifeOf(file, entries, len(problems) > 0, lease.Unknown); c.Life == lease.Alive {
		return c // no interface is needed
	}
	seen := lease.Dead
	var unread notes
	spaces, err := s.Namespaces()
	for _, i := range living(spaces, func(a netip.Addr) bool { return a == addr }, &unread) {
		if c.seen == nil || c.entry != nil && i.Netns.Same(c.entry.Netns) {
			c.seen, seen = &i, lease.Alive
		}
	}
	if seen == lease.Dead && (err != nil || unread.unread) {
		seen = lease.Unknown
	}
	c.Life = lifeOf(file, entries, len(problems) > 0, seen)
	return c
}

// IsShown reports whether libcni's cache shows that the container is alive and has the address.
func (c Container) IsShown() bool {
	return c.Life == lease.Alive && c.entry != nil && c.entry.Address == c.file.Address && c.entry.Netns.Ino != 0
}

// Lease returns the lease of the container, bound in this boot. If it hasKey, it has the pod and
// the window of an entry that names the address. coolDown is the length of its cool-down, if it has
// a pod.
func (c Container) Lease(p lease.Pool, now lease.Instant, hasKey bool, coolDown time.Duration) lease.Lease {
	who := c.file
	if c.entry != nil {
		if c.entry.Address == c.file.Address && hasKey {
			who = *c.entry
		}
		who.IfName, who.Netns = cmp.Or(who.IfName, c.entry.IfName), c.entry.Netns
	}
	// Without an entry of the address the interface may still be that of the container that had it
	// before.
	if c.seen != nil && c.entry != nil && c.entry.Address == c.file.Address {
		who.addInterface(*c.seen)
	}
	if !who.hasPod() {
		coolDown = time.Second
	}
	return decision{pool: p, now: now, coolDown: coolDown}.bound(who, "").Lease
}
