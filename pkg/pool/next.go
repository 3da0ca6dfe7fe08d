package pool

import (
	"net/netip"
	"slices"
)

// Next is the address to hand out after the cursor: the first free one behind
// it, over all ranges in their order and once around, the cursor's own address
// last. A cursor that is zero or lies outside the set begins at the first
// range. It is the order of host-local's iterator.
//
// free returns the lowest free address of [lo, hi], or false if there is none.
// It is asked for whole intervals without gateways, at most two for a range
// and one more for a gateway, so that the cost grows neither with the size of
// the pool nor with the number of leases.
func (s Set) Next(cursor netip.Addr, free func(lo, hi netip.Addr) (netip.Addr, bool)) (netip.Addr, bool) {
	gateways := s.gateways()
	for _, span := range s.spansAfter(cursor) {
		if addr, found := freeIn(span, gateways, free); found {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// span is a run of addresses, both ends included.
type span struct{ lo, hi netip.Addr }

// spansAfter is the whole set in the order of a walk that begins behind the
// cursor. The cursor's range comes twice: its rest first, its beginning last.
func (s Set) spansAfter(cursor netip.Addr) []span {
	spans := make([]span, 0, len(s)+1)
	at := slices.IndexFunc(s, func(r Range) bool { return r.Contains(cursor) })
	if at < 0 {
		for _, r := range s {
			spans = append(spans, span{r.Start, r.End})
		}
		return spans
	}
	if cursor != s[at].End { // so there is an address behind it
		spans = append(spans, span{cursor.Next(), s[at].End})
	}
	for i := 1; i < len(s); i++ {
		r := s[(at+i)%len(s)]
		spans = append(spans, span{r.Start, r.End})
	}
	return append(spans, span{s[at].Start, cursor})
}

// freeIn asks for the parts of a span between its gateways, which are sorted.
func freeIn(in span, gateways []netip.Addr, free func(lo, hi netip.Addr) (netip.Addr, bool)) (netip.Addr, bool) {
	for _, gw := range gateways {
		if gw.Less(in.lo) || in.hi.Less(gw) {
			continue
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
