package pool

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	fake "github.com/containernetworking/plugins/plugins/ipam/host-local/backend/testing"
	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// taken contains the assigned addresses.
type taken map[netip.Addr]bool

func (t taken) free(lo, hi netip.Addr) (netip.Addr, bool) {
	for a := lo; ; a = a.Next() {
		if !t[a] {
			return a, true
		}
		if a == hi {
			return netip.Addr{}, false
		}
	}
}

// drawSet draws one to four small ranges at the start, in the middle or at the end of an address
// space, with gateways inside and outside the ranges.
func drawSet(t *rapid.T) Set {
	bases := rapid.SampledFrom([][]string{
		{"10.0.0.0/29", "10.0.0.8/29", "10.0.1.0/30", "255.255.255.248/29"},
		{"fd00::/126", "fd00::8/125", "2001:db8::/125", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125"},
	}).Draw(t, "family")
	bases = rapid.Permutation(bases).Draw(t, "order")[:rapid.IntRange(1, 4).Draw(t, "ranges")]
	var ranges []Range
	for i, base := range bases {
		subnet := netip.MustParsePrefix(base)
		r, err := NewRange(subnet, drawAddr(t, subnet, fmt.Sprintf("start %d", i)),
			drawAddr(t, subnet, fmt.Sprintf("end %d", i)),
			drawAddr(t, netip.MustParsePrefix(bases[0]), fmt.Sprintf("gateway %d", i)))
		if err != nil {
			t.Skip("invalid range:", err)
		}
		ranges = append(ranges, r)
	}
	s, err := NewSet(ranges...)
	must.Succeed(t, err)
	return s
}

// drawAddr draws an address of the subnet, or the zero Addr.
func drawAddr(t *rapid.T, subnet netip.Prefix, label string) netip.Addr {
	n := rapid.IntRange(-1, 1<<(subnet.Addr().BitLen()-subnet.Bits())-1).Draw(t, label)
	if n < 0 {
		return netip.Addr{}
	}
	a := subnet.Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// TestNextHasUpstreamsOrder assigns all addresses of a set and compares their order with
// host-local's iterator. It skips sets in which the gateway of one range is in another range,
// because host-local assigns that address and leasehold does not.
func TestNextHasUpstreamsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSet(t)
		for _, r := range s {
			if in, found := s.RangeFor(r.Gateway); found && in != r {
				t.Skip("a gateway is in another range")
			}
		}
		cursor := drawAddr(t, s[len(s)-1].Subnet, "cursor")
		want := upstreamOrder(t, s, cursor)

		var got []netip.Addr
		store := taken{}
		for at := cursor; ; {
			next, found := s.Next(at, store.free)
			if !found {
				break
			}
			got = append(got, next)
			store[next], at = true, next
		}
		check.Slices(t, got, want, "set", s, "cursor", cursor)
	})
}

func upstreamOrder(t *rapid.T, s Set, cursor netip.Addr) []netip.Addr {
	var set allocator.RangeSet
	for _, r := range s {
		bits := r.Subnet.Addr().BitLen()
		set = append(set, allocator.Range{
			Subnet:     types.IPNet{IP: r.Subnet.Addr().AsSlice(), Mask: net.CIDRMask(r.Subnet.Bits(), bits)},
			RangeStart: r.Start.AsSlice(), RangeEnd: r.End.AsSlice(), Gateway: r.Gateway.AsSlice(),
		})
	}
	must.Succeed(t, set.Canonicalize())
	last := map[string]net.IP{}
	if cursor.IsValid() {
		last["0"] = cursor.AsSlice()
	}
	alloc := allocator.NewIPAllocator(&set, fake.NewFakeStore(nil, last), 0)
	iter, err := alloc.GetIter()
	must.Succeed(t, err)
	var order []netip.Addr
	for ip, _ := iter.Next(); ip != nil; ip, _ = iter.Next() {
		a, _ := netip.AddrFromSlice(ip.IP)
		order = append(order, a)
	}
	return order
}

// TestNextInALargePool verifies that the cost of Next does not depend on the size of the pool; it
// would not end otherwise.
func TestNextInALargePool(t *testing.T) {
	s := mustSet(t, mustRange(t, "fd00::/8", "", "", ""))
	got, found := s.Next(addr("fd00::ffff:ffff:ffff:ffff"), func(lo, hi netip.Addr) (netip.Addr, bool) {
		return lo, true
	})
	if want := addr("fd00:0:0:1::"); !found || got != want {
		t.Errorf("got %s %t, want %s", got, found, want)
	}
}

// UsableFunc is Usable.
func TestUsableFunc(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSet(t)
		usable := s.UsableFunc()
		for _, r := range s {
			for a := r.Start.Prev(); a.IsValid() && a.Compare(r.End.Next()) <= 0; a = a.Next() {
				if usable(a) != s.Usable(a) {
					t.Fatalf("%s of %s: %v", a, s, usable(a))
				}
			}
		}
	})
}
