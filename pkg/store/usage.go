package store

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// Usage is the number of addresses of a range set by state.
type Usage struct {
	Pool lease.Pool
	// Ranges is nil if the ranges of the pool are not known yet: the store is of an older version,
	// and there was no ADD since, or no configuration names the pool any more. Only the first and
	// the last address of a range are set.
	Ranges pool.Set
	// Size is the number of addresses that can be assigned (pool.Set.Size), at most math.MaxUint64,
	// and 0 if the ranges are not known.
	Size uint64
	// Free is the number of addresses that are neither bound nor held. It includes those in
	// cool-down, which are assigned when no other is left.
	Free                  uint64
	Bound, Held, CoolDown uint64
}

// Usage returns the usage of each range set that is configured (SetRanges), and one without ranges
// for each pool of which none is. It is ordered by network, data directory and ranges. It reads
// the bucket sets and the keys of the leases in the ranges.
//
// A lease may belong to no configured set, because it was adopted or because the ranges have
// changed since. In a pool with one set such leases count as leases of that set. In a pool with
// several sets, those whose address is in the ranges of a set count as Bound.
func (tx *Tx) Usage() []Usage {
	var out []Usage
	for _, p := range tx.Pools() {
		out = append(out, tx.poolUsage(p, tx.pools[p])...)
	}
	slices.SortStableFunc(out, func(a, b Usage) int { return cmp.Compare(a.Pool.Network, b.Pool.Network) })
	return out
}

func (tx *Tx) poolUsage(p lease.Pool, id poolID) []Usage {
	var sets []Usage
	all := Usage{Pool: p}
	for _, r := range tx.eachSet(id) {
		bound, firm, soft := uint64(r.counts.Bound), uint64(r.counts.Firm), uint64(r.counts.Soft)
		all.Bound, all.Held, all.CoolDown = all.Bound+bound, all.Held+firm, all.CoolDown+soft
		if size, ranges, ok := decodeRanges(r.configured); ok {
			sets = append(sets, Usage{Pool: p, Ranges: ranges, Size: size, Held: firm, CoolDown: soft})
		}
	}
	slices.SortFunc(sets, func(a, b Usage) int { return a.Ranges[0].Start.Compare(b.Ranges[0].Start) })
	for i := range sets {
		u := &sets[i]
		taken := tx.taken(id, u.Ranges)
		if len(sets) == 1 {
			u.Bound, u.Held, u.CoolDown = all.Bound, all.Held, all.CoolDown
		} else {
			u.Bound = minus(taken, u.Held+u.CoolDown)
		}
		u.Free = minus(u.Size, minus(taken, u.CoolDown))
	}
	if sets == nil {
		return []Usage{all}
	}
	return sets
}

// minus returns a-b, but at least 0.
func minus(a, b uint64) uint64 { return a - min(a, b) }

// taken returns how many addresses of the ranges have a lease. It reads the keys of the leases.
func (tx *Tx) taken(id poolID, ranges pool.Set) (n uint64) {
	c := tx.bucket(bucketLeases).Cursor()
	for _, r := range ranges {
		last := leaseKey(id, r.End)
		for k, _ := c.Seek(leaseKey(id, r.Start)); k != nil && bytes.Compare(k, last) <= 0; k, _ = c.Next() {
			n++
		}
	}
	return n
}

// ByNetwork returns one Usage for each network. If an interface gets an address of each of several
// range sets, the numbers are those of the set with the fewest free addresses: it decides how many
// pods can start. Those of several data directories are added, up to math.MaxUint64.
func ByNetwork(all []Usage) []Usage {
	var scarcest []Usage // of each pool
	for _, u := range all {
		if last := len(scarcest) - 1; last < 0 || scarcest[last].Pool != u.Pool {
			scarcest = append(scarcest, u)
		} else if u.Free < scarcest[last].Free {
			scarcest[last] = u
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
	u.Ranges = append(slices.Clip(u.Ranges), o.Ranges...)
	u.Size, u.Free = add(u.Size, o.Size), add(u.Free, o.Free)
	u.Bound, u.Held, u.CoolDown = add(u.Bound, o.Bound), add(u.Held, o.Held), add(u.CoolDown, o.CoolDown)
	return u
}

// add returns a+b, at most math.MaxUint64.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// hasRangesOf reports whether the record has no ranges, or the ranges of the set with this ID,
// which is their hash.
func (r setRecord) hasRangesOf(set string) bool {
	_, ranges, ok := decodeRanges(r.configured)
	return r.configured == nil || ok && ranges.ID() == set
}
