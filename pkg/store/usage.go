package store

import (
	"cmp"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// Usage is the number of addresses of a range set by state.
type Usage struct {
	Pool lease.Pool
	// Ranges is nil if the ranges of the pool are not known, because no ADD has had them since its
	// import. Only the first and the last address of a range are set.
	Ranges pool.Set
	// Link is the link that pods of other nodes may be on as well (SetLink).
	Link string
	// Size is the number of addresses that can be assigned (pool.Set.Size), at most pool.MaxSize,
	// and 0 if the ranges are not known.
	Size uint64
	// Free is the number of addresses that are neither bound nor held. It includes those in
	// cool-down, which are assigned when no other is left.
	Free uint64
	Counts
}

// Usage returns the usage of each range set that is configured (SetRanges), and one without ranges
// for each pool of which none is. It is ordered by network, data directory and ranges. It reads all
// leases; a damaged one counts as bound.
//
// A lease may belong to no configured set, because the ranges have changed since. In a pool with
// one set such leases count as leases of that set.
func (tx *Tx) Usage() []Usage {
	of := map[lease.Pool][]Usage{}
	for _, p := range tx.Pools() {
		var sets []Usage
		for _, r := range tx.eachSet(tx.pools[p]) {
			if size, ranges, ok := decodeRanges(r.configured); ok {
				sets = append(sets, Usage{Pool: p, Ranges: ranges, Link: tx.Link(p), Size: size, Free: size})
			}
		}
		slices.SortFunc(sets, func(a, b Usage) int { return a.Ranges[0].Start.Compare(b.Ranges[0].Start) })
		if of[p] = sets; sets == nil {
			of[p] = []Usage{{Pool: p}}
		}
	}
	for l := range tx.All {
		sets := of[l.Pool]
		for i := range sets {
			sets[i].add(l, len(sets) == 1)
		}
	}
	var out []Usage
	for _, p := range tx.Pools() {
		out = append(out, of[p]...)
	}
	slices.SortStableFunc(out, func(a, b Usage) int { return cmp.Compare(a.Pool.Network, b.Pool.Network) })
	return out
}

// add counts a lease that is in the ranges, or has no other set to count in (alone).
func (u *Usage) add(l lease.Lease, alone bool) {
	isIn, n := u.Ranges.Contains(l.Address), cmp.Or(u.of(l), &u.Bound)
	if !isIn && !alone {
		return
	}
	if *n++; isIn && n != &u.CoolDown {
		u.Free -= min(u.Free, 1) // the gateway may have a lease
	}
}

// Totals returns the numbers of leases of each network by state.
func (tx *Tx) Totals() map[string]Counts {
	out := map[string]Counts{}
	for l := range tx.All {
		c := out[l.Pool.Network]
		if n := c.of(l); n != nil {
			*n++
		}
		out[l.Pool.Network] = c
	}
	return out
}

// ByNetwork returns one Usage for each network. If an interface gets an address of each of several
// range sets, the numbers are those of the set with the fewest free addresses: it decides how many
// pods can start. Those of several data directories are added, up to pool.MaxSize. The ranges are
// those of all sets.
func ByNetwork(all []Usage) []Usage {
	var scarcest []Usage // of each pool
	for _, u := range all {
		if last := len(scarcest) - 1; last < 0 || scarcest[last].Pool != u.Pool {
			scarcest = append(scarcest, u)
		} else {
			ranges := append(slices.Clip(scarcest[last].Ranges), u.Ranges...)
			if u.Free < scarcest[last].Free {
				scarcest[last] = u
			}
			scarcest[last].Ranges = ranges
		}
	}
	var out []Usage
	for _, u := range scarcest {
		if last := len(out) - 1; last < 0 || out[last].Pool.Network != u.Pool.Network {
			out = append(out, u)
		} else {
			out[last] = out[last].plus(u)
		}
	}
	return out
}

// plus adds the numbers of another Usage. The result has the pool of u.
func (u Usage) plus(o Usage) Usage {
	u.Ranges, u.Link = append(slices.Clip(u.Ranges), o.Ranges...), cmp.Or(u.Link, o.Link)
	u.Size, u.Free = add(u.Size, o.Size), add(u.Free, o.Free)
	u.Bound, u.Held, u.CoolDown = add(u.Bound, o.Bound), add(u.Held, o.Held), add(u.CoolDown, o.CoolDown)
	return u
}

// add returns a+b, at most pool.MaxSize, which neither is greater than.
func add(a, b uint64) uint64 { return min(a+b, pool.MaxSize) }

// hasRangesOf reports whether the record has no ranges, or the ranges of the set with this ID,
// which is their hash.
func (r setRecord) hasRangesOf(set string) bool {
	_, ranges, ok := decodeRanges(r.configured)
	return r.configured == nil || ok && ranges.ID() == set
}
