package adopt

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/names"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
)

// DefaultCacheDirs is where libcni keeps its results: containerd's and CRI-O's
// place, and the one of older releases (docs/facts.md, "libcni keeps a cache of results").
var DefaultCacheDirs = []string{"/var/lib/cni/results", "/var/lib/cni/cache/results"}

// ErrUnreadable is returned if a source exists but cannot be read. Any address may then be in use,
// so that none may be assigned from a pool that was lost.
var ErrUnreadable = errors.New("the state of the host cannot be read")

// Host provides what the readers need of the kernel: *sandbox.Host, or a simulated one.
type Host interface {
	Netns(path string) (lease.Netns, error)
	Namespaces() ([]sandbox.Namespace, error)
}

// Node is where the sources of one node are.
type Node struct {
	Host      Host
	CacheDirs []string // libcni's; nil for DefaultCacheDirs

	// Files is host-local's directory of the pool, nil if the caller has not opened it.
	Files *hostlocal.Dir

	// Snapshot is the agent's last copy of the store, nil if there is none. SnapshotAt is its time.
	Snapshot   []lease.Lease
	SnapshotAt time.Time
}

// Found is the result of Find.
type Found struct {
	Findings []Finding // ordered by address
	// Problems are warnings for stderr about sources that could not be read, one line each.
	Problems []string
	// Named reports whether libcni's cache, which has an entry for each container, or the snapshot
	// names the container of every address in use, and every source could be read. The snapshot
	// alone is not sufficient, because it lacks what happened after it.
	Named bool
}

// Find returns the leases of a pool that follow from the sources of a node. Its errors wrap
// ErrUnreadable.
//
// sets are the range sets of the pool's configuration, nil if they are unknown: addresses that only
// a namespace shows are then ignored. soft is the length of holds without a window. newID returns
// the ID of a new lease.
func Find(n Node, p lease.Pool, sets []pool.Set, now lease.Instant, soft time.Duration,
	newID func() string) (Found, error) {
	var notes notes
	claims, err := n.gather(p, &notes)
	found := Found{Problems: notes.list()}
	if err != nil {
		return found, err
	}
	found.Findings = Decide(within(claims, sets), p, now, soft, newID)
	found.Named = !notes.unread && areNamed(found.Findings, claims)
	return found, nil
}

// areNamed reports whether libcni's cache has any entry, and the container of each bound lease is
// known from it or from the snapshot.
func areNamed(findings []Finding, claims []Claim) bool {
	type holder struct {
		addr      netip.Addr
		container string
	}
	named, cached := map[holder]bool{}, false
	for _, c := range claims {
		isCached := c.Kind == LiveCache || c.Kind == DeadCache
		cached = cached || isCached
		if c.ContainerID != "" && (isCached || c.Kind == Snapshot) {
			named[holder{c.Address, c.ContainerID}] = true
		}
	}
	for _, f := range findings {
		if f.Lease.State == lease.Bound && !named[holder{f.Lease.Address, f.Lease.Holder.ContainerID}] {
			return false
		}
	}
	return cached
}

// gather reads all sources of a pool.
func (n Node) gather(p lease.Pool, notes *notes) (claims []Claim, err error) {
	if !filepath.IsAbs(p.DataDir) || !names.IsNetwork(p.Network) {
		return nil, fmt.Errorf("%w: pool %q in %q has no directory", ErrUnreadable, p.Network, p.DataDir)
	}
	spaces, err := n.Host.Namespaces()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	files, err := n.hostLocal(p, notes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	alive := n.alive(func() ([]sandbox.Namespace, error) { return spaces, nil }, notes)
	return slices.Concat(n.snapshot(p, notes), living(spaces, notes),
		n.cache(p.Network, alive, notes), kruise(p.DataDir, notes), files), nil
}

// snapshot returns the claims of the agent's snapshot about the pool.
func (n Node) snapshot(p lease.Pool, notes *notes) []Claim {
	var out []Claim
	for _, l := range n.Snapshot {
		if l.Pool != p || l.State == lease.None {
			continue
		}
		if err := l.Validate(); err != nil {
			notes.addUnread("ignored the snapshot's lease of %s: %v", l.Address, err)
			continue
		}
		out = append(out, Claim{
			Kind: Snapshot, Address: l.Address, Source: "the agent's snapshot",
			Namespace: l.Namespace, Name: l.Name, ContainerID: l.Holder.ContainerID, IfName: l.Holder.IfName,
			Modified: n.SnapshotAt, Lease: l,
		})
	}
	return out
}

// within removes the claims about addresses that belong to other networks: only an interface has
// them, and no set contains them. All other sources name the pool, and are used even if its ranges
// have changed since.
func within(claims []Claim, sets []pool.Set) []Claim {
	named := map[netip.Addr]bool{}
	for _, c := range claims {
		named[c.Address] = named[c.Address] || c.Kind != Living
	}
	usable := pool.Index(sets...)
	return slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool {
		return !named[c.Address] && !usable(c.Address)
	})
}

// Foreign returns the lease of one file of host-local's that is not ours: the container that it
// names, with its pod if libcni knows it.
func Foreign(n Node, p lease.Pool, addr netip.Addr, content string, now lease.Instant, newID func() string) Finding {
	claim, _ := claimOf(content)
	claim.Address, claim.Source = addr, "host-local's file"
	claims := []Claim{claim}
	cached, _ := n.CacheEntry(p.Network, claim.ContainerID, claim.IfName)
	for _, c := range cached {
		if c.Address == addr {
			claims = append(claims, c)
		}
	}
	found := Decide(claims, p, now, time.Second, newID)
	return found[0] // a file alone is a bound lease of unknown owner
}
