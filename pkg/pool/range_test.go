package pool

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func addr(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}

func prefix(s string) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(s)
}

func mustRange(t *testing.T, subnet, start, end, gateway string) Range {
	t.Helper()
	r, err := NewRange(prefix(subnet), addr(start), addr(end), addr(gateway))
	must.Succeed(t, err)
	return r
}

func mustSet(t *testing.T, ranges ...Range) Set {
	t.Helper()
	s, err := NewSet(ranges...)
	must.Succeed(t, err)
	return s
}

func TestNewRange(t *testing.T) {
	for _, tt := range []struct {
		name                        string
		subnet, start, end, gateway string
		want                        string // the range, or part of an error
	}{
		{"the defaults: .1 is the gateway and in the range, the broadcast address is not",
			"10.0.0.0/24", "", "", "", "10.0.0.1-10.0.0.254, gateway 10.0.0.1"},
		{"the smallest subnet", "10.0.0.4/30", "", "", "", "10.0.0.5-10.0.0.6, gateway 10.0.0.5"},
		{"start and end may name the network and the broadcast address",
			"10.0.0.0/24", "10.0.0.0", "10.0.0.255", "", "10.0.0.0-10.0.0.255, gateway 10.0.0.1"},
		{"one address", "10.0.0.0/24", "10.0.0.9", "10.0.0.9", "10.0.0.1", "10.0.0.9-10.0.0.9, gateway 10.0.0.1"},
		{"a gateway outside the subnet, as ptp with a link-local one has",
			"10.0.0.0/24", "", "", "169.254.1.1", "10.0.0.1-10.0.0.254, gateway 169.254.1.1"},
		{"IPv6 has no broadcast address",
			"fd00::/64", "", "", "", "fd00::1-fd00::ffff:ffff:ffff:ffff, gateway fd00::1"},
		{"the end of the address space", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126", "", "", "",
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffd-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff, gateway " +
				"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffd"},
		{"all of IPv4", "0.0.0.0/0", "", "", "", "0.0.0.1-255.255.255.254, gateway 0.0.0.1"},
		{"an IPv4-mapped IPv6 address is unmapped",
			"10.0.0.0/24", "::ffff:10.0.0.7", "", "::ffff:10.0.0.2", "10.0.0.7-10.0.0.254, gateway 10.0.0.2"},
		{"no subnet", "", "", "", "", "subnet: missing"},
		{"a point-to-point subnet", "10.0.0.0/31", "", "", "",
			"subnet: 10.0.0.0/31 is too small to allocate from; want /30 or larger"},
		{"one IPv6 address", "fd00::1/128", "", "", "", "/126 or larger"},
		{"an address instead of a network", "10.0.0.7/24", "", "", "",
			"subnet: 10.0.0.7/24 has host bits set; want the network 10.0.0.0/24"},
		{"an IPv4-mapped IPv6 subnet", "::ffff:10.0.0.0/120", "", "", "",
			"subnet: ::ffff:10.0.0.0/120 is an IPv4-mapped"},
		{"a start outside the subnet", "10.0.0.0/24", "10.0.1.5", "", "",
			"rangeStart: 10.0.1.5 is not in subnet 10.0.0.0/24"},
		{"a start in the other family", "10.0.0.0/24", "fd00::1", "", "", "rangeStart: fd00::1 is not in"},
		{"an end outside the subnet", "10.0.0.0/24", "", "10.0.1.5", "",
			"rangeEnd: 10.0.1.5 is not in subnet 10.0.0.0/24"},
		{"the end before the start", "10.0.0.0/24", "10.0.0.9", "10.0.0.8", "",
			"rangeEnd: 10.0.0.8 is before rangeStart 10.0.0.9"},
		{"a start after the default end", "10.0.0.0/24", "10.0.0.255", "", "",
			"rangeStart: 10.0.0.255 is after 10.0.0.254"},
		{"the network address as the end, with the default start", "10.0.0.0/24", "", "10.0.0.0", "",
			"rangeEnd: 10.0.0.0 is before rangeStart 10.0.0.1"},
		{"a start with a zone", "fe80::/64", "fe80::1%eth0", "", "", "rangeStart: "},
		{"a gateway with a zone", "fe80::/64", "", "", "fe80::1%eth0", "gateway: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := NewRange(prefix(tt.subnet), addr(tt.start), addr(tt.end), addr(tt.gateway))
			got := fmt.Sprintf("%s, gateway %s", r, r.Gateway)
			if err != nil && strings.Contains(err.Error(), tt.want) {
				return
			}
			must.Succeed(t, err)
			check.Equal(t, got, tt.want)
		})
	}
}
