package pool

import (
	"math"
	"strings"
	"testing"
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
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
	if _, err := NewSet(b, a); err != nil {
		t.Errorf("two adjacent ranges in descending order: %v", err)
	}
}

func TestDisjoint(t *testing.T) {
	a := mustSet(t, mustRange(t, "10.0.0.0/24", "", "10.0.0.99", ""))
	b := mustSet(t, mustRange(t, "10.0.0.0/24", "10.0.0.100", "", ""))
	c := mustSet(t, mustRange(t, "10.0.1.0/24", "", "", ""), mustRange(t, "10.0.0.0/24", "10.0.0.50", "10.0.0.100", ""))
	v6 := mustSet(t, mustRange(t, "::a00:0/120", "", "", "")) // the same bits as 10.0.0.0
	names := []string{"zero", "one", "two"}
	if err := Disjoint([]Set{a, b, v6}, names); err != nil {
		t.Errorf("disjoint sets: %v", err)
	}
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
		if s.Contains(a) != tt.contains || s.Usable(a) != tt.usable {
			t.Errorf("%s: contains %t, usable %t; want %t, %t", a, s.Contains(a), s.Usable(a), tt.contains, tt.usable)
		}
		if Usable(both, a) != tt.usable || (SetOf(both, a) == 1) != tt.contains {
			t.Errorf("%s: of two sets: usable %t, in %d", a, Usable(both, a), SetOf(both, a))
		}
	}
	link := mustSet(t, mustRange(t, "fe80::/64", "", "", ""))
	if !link.Usable(addr("fe80::7")) || link.Contains(addr("fe80::7%eth0")) || link.Usable(addr("fe80::7%eth0")) {
		t.Error("an address with a zone is of a link, and no range has one")
	}
	if a := addr("10.0.2.1"); !Usable(both, a) || SetOf(both, a) != 0 || Usable(both, addr("10.0.2.7")) {
		t.Error("the first of two sets is not known")
	}
	if s.Size() != 10 {
		t.Errorf("size %d, want 10: twice .1 to .6 without two gateways", s.Size())
	}
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
		if got != tt.want {
			t.Errorf("%s: size %d, want %d", tt.subnet, got, tt.want)
		}
	}
	whole := mustSet(t, mustRange(t, "fd00::/64", "fd00::", "", "2001:db8::1"))
	if whole.Size() != math.MaxInt64 {
		t.Errorf("2^64 addresses: size %d, want math.MaxInt64", whole.Size())
	}
	over := mustSet(t, mustRange(t, "fd00::/32", "fd00::ffff:ffff:ffff:fff0", "fd00:0:0:1::f", ""))
	if over.Size() != 32 {
		t.Errorf("over the border of a /64: size %d, want 32", over.Size())
	}
	half := func(subnet string) Range { return mustRange(t, subnet, "", "", "2001:db8::1") }
	sum := mustSet(t, half("fd00::/66"), half("fd01::/66"), half("fd02::/64"))
	if sum.Size() != math.MaxInt64 {
		t.Errorf("two /66 and a /64: size %d, want math.MaxInt64", sum.Size())
	}
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
		if len(id) != 16 || strings.Trim(id, "0123456789abcdef") != "" {
			t.Errorf("%s: ID %q is not 16 hex digits", name, id)
		}
		if other, taken := ids[id]; taken {
			t.Errorf("%s and %s share the ID %s", name, other, id)
		}
		ids[id] = name
	}
	// The ID is stored on disk, so that it must not change with a version.
	if got, want := mustSet(t, a, b).ID(), "0b3b03837c7b36c1"; got != want {
		t.Errorf("ID %s, want %s", got, want)
	}
	other := mustSet(t, mustRange(t, "10.0.0.0/24", "", "", "10.0.0.77"), b)
	if other.ID() != mustSet(t, a, b).ID() {
		t.Error("the ID depends on the gateway")
	}
}
