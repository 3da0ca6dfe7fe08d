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
// Invariant, kept by NewSet: it is not empty, all ranges are of one family,
// and no two overlap.
type Set []Range

// NewSet checks that the ranges can stand together. Their order is kept: it
// is the order in which addresses are handed out.
func NewSet(ranges ...Range) (Set, error) {
	if len(ranges) == 0 {
		return nil, errors.New("empty range set; at least one range is needed")
	}
	for _, r := range ranges[1:] {
		if r.Start.BitLen() != ranges[0].Start.BitLen() {
			return nil, fmt.Errorf("ranges %s and %s are of different address families; put them into two range sets", ranges[0], r)
		}
	}
	set := Set(slices.Clone(ranges))
	if a, b, found := overlap(ranges); found {
		return nil, fmt.Errorf("ranges %s and %s overlap", a, b)
	}
	return set, nil
}

// Disjoint returns an error if an address lies in two of the sets. It names
// the two ranges.
func Disjoint(sets []Set) error {
	if a, b, found := overlap(slices.Concat(sets...)); found {
		return fmt.Errorf("range sets overlap: %s and %s have addresses in common", a, b)
	}
	return nil
}

// overlap finds two ranges with a common address, if there are any. It sorts
// first, so that a hostile list of ranges costs no quadratic time.
func overlap(ranges []Range) (a, b Range, found bool) {
	sorted := slices.Clone(ranges)
	slices.SortStableFunc(sorted, func(a, b Range) int { return a.Start.Compare(b.Start) })
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].Contains(sorted[i].Start) {
			return sorted[i-1], sorted[i], true
		}
	}
	return Range{}, Range{}, false
}

// RangeFor is the range of the set that contains the address.
func (s Set) RangeFor(addr netip.Addr) (Range, bool) {
	for _, r := range s {
		if r.Contains(addr) {
			return r, true
		}
	}
	return Range{}, false
}

// Contains tells whether one of the set's ranges contains the address.
func (s Set) Contains(addr netip.Addr) bool {
	_, found := s.RangeFor(addr)
	return found
}

// Usable tells whether the address may be handed out: it lies in the set and
// is the gateway of none of its ranges. (host-local looks only at the gateway
// of the address's own range, and so gives another range's gateway to a pod.)
func (s Set) Usable(addr netip.Addr) bool {
	return s.Contains(addr) && !s.isGateway(addr)
}

func (s Set) isGateway(addr netip.Addr) bool {
	return slices.ContainsFunc(s, func(r Range) bool { return r.Gateway == addr })
}

// ID names the set's content: 16 hex digits, the same for the same ranges in
// the same order, wherever they stand in a configuration. What is remembered
// for a set (the cursor, the count of its holds) is remembered under its ID,
// so that a set added before it takes over nothing (DESIGN 3). Subnets and
// gateways do not count: the addresses are the same with another gateway.
func (s Set) ID() string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.String())) // a hash never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// Size counts the usable addresses; math.MaxUint64 stands for that many or
// more.
func (s Set) Size() uint64 {
	var sum uint64
	for _, r := range s {
		n := r.size()
		if n >= math.MaxUint64-sum {
			return math.MaxUint64
		}
		sum += n
	}
	return sum - uint64(len(s.gateways()))
}

// gateways are the set's gateways that lie inside it, each once, in order.
func (s Set) gateways() []netip.Addr {
	var in []netip.Addr
	for _, r := range s {
		if s.Contains(r.Gateway) {
			in = append(in, r.Gateway)
		}
	}
	slices.SortFunc(in, netip.Addr.Compare)
	return slices.Compact(in)
}

// String is host-local's form: "10.0.0.1-10.0.0.254,10.0.1.1-10.0.1.254".
func (s Set) String() string {
	out := make([]string, len(s))
	for i, r := range s {
		out[i] = r.String()
	}
	return strings.Join(out, ",")
}
