package importer

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// DefaultCacheDirs is where libcni keeps its results: containerd's and CRI-O's
// place, and the one of older releases (docs/facts.md, "libcni keeps a cache of results").
var DefaultCacheDirs = []string{"/var/lib/cni/results", "/var/lib/cni/cache/results"}

// ErrUnreadable is returned if a source exists but cannot be read. Any address of the pool may then
// be in use.
var ErrUnreadable = errors.New("the state of the host cannot be read")

// Sources is where the sources of one node are.
type Sources struct {
	// Netns and Namespaces are the methods of host.Host. The second takes long.
	Netns      func(path string) (lease.Netns, error)
	Namespaces func() ([]host.Namespace, error)
	CacheDirs  []string // libcni's

	// Files is host-local's directory of the pool, nil if the caller has not opened it.
	Files *hostlocal.Dir
}

// Found is the result of Find.
type Found struct {
	Findings []Finding // ordered by address
	// Problems are warnings for stderr about sources that could not be read, one line each.
	Problems []string
	// Named reports whether every source could be read, and libcni's cache has an entry at all and
	// names the container of every address in use. After the loss of a store Named proves that no
	// address in use is missing, because libcni's cache has an entry for each container.
	Named bool
	// Shown reports whether any source may show that the pool was used: an interface in its ranges,
	// an entry of libcni's cache, or anything in host-local's directory but the lock.
	Shown bool
	// Used are the reservations of the Kruise fork of addresses of the pool (Convert).
	Used []string
}

// Find reads the sources of a node and returns the leases of a pool to import. Its errors wrap
// ErrUnreadable.
//
// sets are the range sets of the pool's configuration. If they are unknown (nil), addresses that
// are only on an interface are ignored, because they may belong to another network. coolDown is the
// length of cool-downs. newID returns the ID of a new lease.
func Find(s Sources, p lease.Pool, sets []pool.Set, now lease.Instant, coolDown time.Duration,
	newID func() string) (Found, error) {
	if !filepath.IsAbs(p.DataDir) || !hostlocal.IsNetwork(p.Network) {
		return Found{}, fmt.Errorf("%w: pool %q in %q has no directory", ErrUnreadable, p.Network, p.DataDir)
	}
	var notes notes
	spaces, err := s.Namespaces()
	if err != nil {
		return Found{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	files, err := s.hostLocal(p, &notes)
	if err != nil {
		return Found{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	seen := living(spaces, func(netip.Addr) bool { return true }, &notes)
	candidates := within(slices.Concat(seen, s.cache(p.Network, &notes), kruise(p.DataDir, &notes), files), sets)
	found := Found{Problems: notes.texts}
	found.Shown = notes.unread || len(candidates) > 0 || !hostlocal.IsEmpty(p)
	found.Findings = decide(candidates, p, now, coolDown, newID)
	found.Named = !notes.unread && areNamed(found.Findings, candidates)
	for _, c := range candidates {
		if c.Kind == fromKruise && p.Network != kruiseTree {
			found.Used = append(found.Used, c.path)
		}
	}
	return found, nil
}

// Unknown returns the lease of an address that nothing shows the owner of, without an ID.
func Unknown(p lease.Pool, addr netip.Addr, now lease.Instant) lease.Lease {
	return Container{file: candidate{Address: addr}}.Lease(p, now, false, 0)
}

// areNamed reports whether libcni's cache has an entry at all, and names the container of each
// bound lease.
func areNamed(findings []Finding, candidates []candidate) bool {
	type holder struct {
		addr      netip.Addr
		container string
	}
	named := map[holder]bool{}
	for _, c := range candidates {
		if c.ContainerID != "" && (c.Kind == fromLiveCache || c.Kind == fromDeadCache) {
			named[holder{c.Address, c.ContainerID}] = true
		}
	}
	for _, f := range findings {
		if f.Lease.State == lease.Bound && !named[holder{f.Lease.Address, f.Lease.Holder.ContainerID}] {
			return false
		}
	}
	return len(named) > 0
}

// within sets the range sets of the candidates, and removes those of addresses that belong to other
// networks, that is, addresses which only an interface or a reservation of the Kruise fork has and
// which are in no set. The other sources are of this pool, and are used even if its ranges have
// changed since. If the sets are not known, a reservation may be of this pool.
func within(candidates []candidate, sets []pool.Set) []candidate {
	var usable []func(netip.Addr) bool
	for _, s := range sets {
		usable = append(usable, s.UsableFunc())
	}
	named := map[netip.Addr]bool{}
	for i, c := range candidates {
		candidates[i].set = slices.IndexFunc(usable, func(in func(netip.Addr) bool) bool { return in(c.Address) })
		named[c.Address] = named[c.Address] || c.Kind != fromLiving && (c.Kind != fromKruise || sets == nil)
	}
	return slices.DeleteFunc(candidates, func(c candidate) bool { return !named[c.Address] && c.set < 0 })
}

// living returns the candidates of those addresses on interfaces for which match returns true.
func living(spaces []host.Namespace, match func(netip.Addr) bool, notes *notes) []candidate {
	var out []candidate
	for _, s := range spaces {
		if s.Err != nil {
			notes.addUnread("%v", s.Err)
		}
		for _, a := range s.Addresses {
			if !match(a.Addr) {
				continue
			}
			out = append(out, candidate{
				Kind: fromLiving, Address: a.Addr, IfName: a.IfName, Netns: s.Netns, MAC: a.MAC,
				Source: fmt.Sprintf("interface %s in netns %s", a.IfName, s.Netns.Path),
			})
		}
	}
	return out
}

// notes are the warnings about sources that one call of Find collects for stderr.
type notes struct {
	texts  []string
	unread bool // a source that may name an address in use could not be read
}

// addUnread adds a note about a source that cannot be read and may name an address in use.
func (n *notes) addUnread(format string, args ...any) {
	n.unread = true
	n.add(format, args...)
}

func (n *notes) add(format string, args ...any) {
	n.texts = append(n.texts, fmt.Sprintf(format, args...))
}
