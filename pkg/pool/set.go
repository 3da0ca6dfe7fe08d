package pool

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// Set is a list of ranges from which an interface gets one address.
//
// NewSet guarantees that it is not empty, that all ranges are of one address family, and that they
// do not overlap.
type Set []Range

// NewSet returns a set of the ranges. Addresses are assigned in the order of the ranges.
func NewSet(ranges ...Range) (Set, error) {
	if len(ranges) == 0 {
		return nil, errors.New("empty range set; want at least one range")
	}
	first := ranges[0]
	for _, r := range ranges {
		if r.Start.BitLen() != first.Start.BitLen() {
			return nil, fmt.Errorf("ranges %s and %s are of different address families; put them into two range sets",
				first, r)
		}
	}
	if a, b, found := overlap(ranges); found {
		return nil, fmt.Errorf("ranges %s and %s overlap", a, b)
	}
	return slices.Clone(ranges), nil
}

// Disjoint returns an error if an address is in two of the sets. The error has the two ranges, and
// the names of their sets, which are in the order of the sets.
func Disjoint(sets []Set, names []string) error {
	a, b, found := overlap(slices.Concat(sets...))
	if !found {
		return nil
	}
	var both []string
	for i, s := range sets {
		if slices.Contains(s, a) || slices.Contains(s, b) {
			both = append(both, names[i])
		}
	}
	return fmt.Errorf("%s overlap: %s and %s have addresses in common", strings.Join(both, " and "), a, b)
}

// overlap returns two ranges that have an address in common, if there are any. It sorts a copy of
// the ranges, so that a long list does not take quadratic time.
func overlap(ranges []Range) (a, b Range, found bool) {
	sorted := sorted(ranges)
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].contains(sorted[i].Start) {
			return sorted[i-1], sorted[i], true
		}
	}
	return Range{}, Range{}, false
}

func sorted(ranges []Range) []Range {
	out := slices.Clone(ranges)
	slices.SortStableFunc(out, func(a, b Range) int { return a.Start.Compare(b.Start) })
	return out
}

// RangeFor returns the range of the set that contains the address.
func (s Set) RangeFor(addr netip.Addr) (Range, bool) {
	for _, r := range s {
		if r.contains(addr) {
			return r, true
		}
	}
	return Range{}, false
}

// Contains reports whether one of the set's ranges contains the address.
func (s Set) Contains(addr netip.Addr) bool {
	_, found := s.RangeFor(addr)
	return found
}

// Usable reports whether the address may be assigned: it is in the set and not the gateway of any
// of its ranges. (host-local only compares with the gateway of the address's own range, and so
// assigns the gateway of another range to a pod.)
func (s Set) Usable(addr netip.Addr) bool {
	return s.Contains(addr) && !slices.ContainsFunc(s, func(r Range) bool { return r.Gateway == addr })
}

// UsableFunc returns Usable for many addresses: it takes time for each range once.
func (s Set) UsableFunc() func(netip.Addr) bool {
	contains, gateways := s.containsFunc(), s.gateways()
	return func(addr netip.Addr) bool {
		_, isGateway := slices.BinarySearchFunc(gateways, addr, netip.Addr.Compare)
		return contains(addr) && !isGateway
	}
}

// containsFunc returns Contains for many addresses.
func (s Set) containsFunc() func(netip.Addr) bool {
	sorted := sorted(s)
	return func(addr netip.Addr) bool {
		at, found := slices.BinarySearchFunc(sorted, addr,
			func(r Range, a netip.Addr) int { return r.Start.Compare(a) })
		return found || at > 0 && sorted[at-1].contains(addr)
	}
}

// SetOf returns the index of the set that contains an address, -1 if none does.
func SetOf(sets []Set, addr netip.Addr) int {
	return slices.IndexFunc(sets, func(s Set) bool { return s.Contains(addr) })
}

// Usable reports whether an address is Usable in one of the sets.
func Usable(sets []Set, addr netip.Addr) bool {
	return slices.ContainsFunc(sets, func(s Set) bool { return s.Usable(addr) })
}

// ID returns a hash of the ranges and their order, as 16 hex digits. The store identifies a set by
// its ID and not by its index in the configuration, so that a set keeps its cursor and its counts
// when another set is added before it. The ID does not depend on subnets and gateways, because the
// addresses do not.
func (s Set) ID() string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.String())) // a hash never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// MaxSize is the greatest size of a set. Many readers of JSON have no larger integers.
const MaxSize = math.MaxInt64

// Size returns the number of usable addresses, at most MaxSize.
func (s Set) Size() uint64 {
	var sum uint64
	for _, r := range s {
		if sum += min(r.size(), MaxSize+1); sum > MaxSize {
			return MaxSize
		}
	}
	return sum - uint64(len(s.gateways()))
}

// gateways returns the gateways that are addresses of the set, sorted and without duplicates.
func (s Set) gateways() []netip.Addr {
	var in []netip.Addr
	contains := s.containsFunc()
	for _, r := range s {
		if contains(r.Gateway) {
			in = append(in, r.Gateway)
		}
	}
	slices.SortFunc(in, netip.Addr.Compare)
	return slices.Compact(in)
}

// String returns host-local's notation, as in "10.0.0.1-10.0.0.254,10.0.1.1-10.0.1.254".
func (s Set) String() string {
	out := make([]string, len(s))
	for i, r := range s {
		out[i] = r.String()
	}
	return strings.Join(out, ",")
}
