package pool

import (
	"math"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestNewSetRejects(t *testing.T) {
	a := mustRange(t, "10.0.0.0/24", "", "", "")
	b := mustRange(t, "10.0.1.0/24", "", "", "")
	inA := mustRange(t, "10.0.0.0/16", "10.0.0.254", "10.0.0.255", "")
	v6 := mustRange(t, "fd00::/64", "", "", "")
	tests := []struct {
		name   string
		ranges []Range
		want   string
	}{
		{"nothing", nil, "empty range set"},
		{"two families", []Range{a, b, v6}, "different address families"},
		{"the same range twice", []Range{a, b, a}, "overlap"},
		{"one common address, in any order", []Range{inA, b, a},
			"ranges 10.0.0.1-10.0.0.254 and 10.0.0.254-10.0.0.255 overlap"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewSet(tt.ranges...)
			check.Error(t, err, tt.want)
		})
	}
	_, err := NewSet(b, a)
	must.Succeed(t, err, "two adjacent ranges in descending order")
}

func TestDisjoint(t *testing.T) {
	a := mustSet(t, mustRange(t, "10.0.0.0/24", "", "10.0.0.99", ""))
	b := mustSet(t, mustRange(t, "10.0.0.0/24", "10.0.0.100", "", ""))
	c := mustSet(t, mustRange(t, "10.0.1.0/24", "", "", ""), mustRange(t, "10.0.0.0/24", "10.0.0.50", "10.0.0.100", ""))
	v6 := mustSet(t, mustRange(t, "::a00:0/120", "", "", "")) // the same bits as 10.0.0.0
	names := []string{"zero", "one", "two"}
	must.Succeed(t, Disjoint([]Set{a, b, v6}, names), "disjoint sets")
	for want, sets := range map[string][]Set{
		"zero and two overlap: 10.0.0.50-10.0.0.100 and 10.0.0.100-10.0.0.254 have addresses in common": {b, v6, c},
		"zero and one overlap: 10.0.0.1-10.0.0.99 and 10.0.0.1-10.0.0.99 have addresses in common":      {a, a, b},
	} {
		if err := Disjoint(sets, names); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestSetUsable(t *testing.T) {
	s := mustSet(t,
		mustRange(t, "10.0.0.0/29", "", "", ""),
		mustRange(t, "10.0.1.0/29", "", "", "10.0.0.3"), // its gateway is in the other range
	)
	other := mustSet(t, mustRange(t, "10.0.2.0/29", "", "", "10.0.0.2")) // usable in s
	both := []Set{other, s}
	tests := []struct {
		address          string
		contains, usable bool
	}{
		{"10.0.0.0", false, false}, // the network address
		{"10.0.0.1", true, false},  // the gateway
		{"10.0.0.2", true, true},
		{"10.0.0.3", true, false}, // the other range's gateway
		{"10.0.0.6", true, true},
		{"10.0.0.7", false, false}, // the broadcast address
		{"10.0.1.1", true, true},   // not the gateway, because another one is set
		{"fd00::1", false, false},
		{"::ffff:10.0.0.2", false, false}, // callers unmap addresses
	}
	for _, tt := range tests {
		a := addr(tt.address)
		check.Equal(t, s.Contains(a), tt.contains, "contains", a)
		check.Equal(t, s.Usable(a), tt.usable, a, "is usable")
		check.Equal(t, Usable(both, a), tt.usable, a, "is usable in two sets")
		check.Equal(t, SetOf(both, a) == 1, tt.contains, "the second of two sets contains", a)
	}
	link := mustSet(t, mustRange(t, "fe80::/64", "", "", ""))
	if !link.Usable(addr("fe80::7")) || link.Contains(addr("fe80::7%eth0")) || link.Usable(addr("fe80::7%eth0")) {
		t.Error("an address with a zone is of a link, and no range has one")
	}
	if a := addr("10.0.2.1"); !Usable(both, a) || SetOf(both, a) != 0 || Usable(both, addr("10.0.2.7")) {
		t.Error("the first of two sets is not known")
	}
	check.Equal(t, s.Size(), 10, "twice .1 to .6 without two gateways")
	if r, found := s.RangeFor(addr("10.0.1.4")); !found || r.Subnet != prefix("10.0.1.0/29") {
		t.Errorf("range for 10.0.1.4: %v %t", r, found)
	}
}

func TestSetSize(t *testing.T) {
	tests := []struct {
		subnet string
		want   uint64
	}{
		{"10.0.0.0/24", 253},
		{"10.0.0.0/30", 1},
		{"0.0.0.0/0", math.MaxUint32 - 2},
		{"fd00::/126", 2},
		{"fd00::/65", 1<<63 - 2},
		{"fd00::/64", math.MaxInt64},
		{"fd00::/63", math.MaxInt64},
		{"::/0", math.MaxInt64},
	}
	for _, tt := range tests {
		got := mustSet(t, mustRange(t, tt.subnet, "", "", "")).Size()
		check.Equal(t, got, tt.want, tt.subnet, "size")
	}
	whole := mustSet(t, mustRange(t, "fd00::/64", "fd00::", "", "2001:db8::1"))
	check.Equal(t, whole.Size(), math.MaxInt64, "2^64 addresses")
	over := mustSet(t, mustRange(t, "fd00::/32", "fd00::ffff:ffff:ffff:fff0", "fd00:0:0:1::f", ""))
	check.Equal(t, over.Size(), 32, "over the border of a /64")
	half := func(subnet string) Range { return mustRange(t, subnet, "", "", "2001:db8::1") }
	sum := mustSet(t, half("fd00::/66"), half("fd01::/66"), half("fd02::/64"))
	check.Equal(t, sum.Size(), math.MaxInt64, "two /66 and a /64")
}

func TestSetID(t *testing.T) {
	a, b := mustRange(t, "10.0.0.0/24", "", "", ""), mustRange(t, "10.0.1.0/24", "", "", "")
	ids := map[string]string{}
	for name, s := range map[string]Set{
		"a":       mustSet(t, a),
		"b":       mustSet(t, b),
		"a, b":    mustSet(t, a, b),
		"b, a":    mustSet(t, b, a),
		"shorter": mustSet(t, mustRange(t, "10.0.0.0/24", "", "10.0.0.99", "")),
	} {
		id := s.ID()
		check.Equal(t, len(id), 16, name, id)
		check.Equal(t, strings.Trim(id, "0123456789abcdef"), "", name, "other digits")
		if other, taken := ids[id]; taken {
			t.Errorf("%s and %s share the ID %s", name, other, id)
		}
		ids[id] = name
	}
	// The ID is stored on disk, so that it must not change with a version.
	check.Equal(t, mustSet(t, a, b).ID(), "0b3b03837c7b36c1")
	other := mustSet(t, mustRange(t, "10.0.0.0/24", "", "", "10.0.0.77"), b)
	check.Equal(t, other.ID(), mustSet(t, a, b).ID(), "with another gateway")
}
