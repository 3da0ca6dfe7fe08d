package pool

import (
	"net/netip"
	"slices"
)

// Next returns the next address to assign: the first free one after the cursor, over all ranges in
// order, wrapping around and ending with the cursor itself. If the cursor is zero or not in the
// set, it starts at the first range. This is the order of host-local's iterator.
//
// free returns the lowest free address of [lo, hi], or false if there is none. Next calls it with
// intervals that contain no gateway, at most once per range and gateway plus one, so that its cost
// depends neither on the size of the pool nor on the number of leases.
func (s Set) Next(cursor netip.Addr, free func(lo, hi netip.Addr) (netip.Addr, bool)) (netip.Addr, bool) {
	gateways := s.gateways()
	for _, span := range s.spansAfter(cursor) {
		if addr, found := freeIn(span, gateways, free); found {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// span is an interval of addresses, including both ends.
type span struct{ lo, hi netip.Addr }

// spansAfter returns the intervals of the set in the order of Next. The range of the cursor is
// split: what follows the cursor comes first, the rest last.
func (s Set) spansAfter(cursor netip.Addr) []span {
	var spans []span
	at := slices.IndexFunc(s, func(r Range) bool { return r.contains(cursor) })
	if at < 0 { // as after the last address
		at = len(s) - 1
		cursor = s[at].End
	}
	if cursor != s[at].End {
		spans = append(spans, span{cursor.Next(), s[at].End})
	}
	for i := 1; i < len(s); i++ {
		r := s[(at+i)%len(s)]
		spans = append(spans, span{r.Start, r.End})
	}
	return append(spans, span{s[at].Start, cursor})
}

// freeIn returns the lowest free address of a span that is not a gateway. It calls free for the
// parts of the span between the gateways, which must be sorted.
func freeIn(in span, gateways []netip.Addr, free func(lo, hi netip.Addr) (netip.Addr, bool)) (netip.Addr, bool) {
	first, _ := slices.BinarySearchFunc(gateways, in.lo, netip.Addr.Compare)
	for _, gw := range gateways[first:] {
		if in.hi.Less(gw) {
			break
		}
		if in.lo.Less(gw) {
			if addr, found := free(in.lo, gw.Prev()); found {
				return addr, true
			}
		}
		if gw == in.hi {
			return netip.Addr{}, false
		}
		in.lo = gw.Next()
	}
	return free(in.lo, in.hi)
}
