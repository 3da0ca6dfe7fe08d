package inspect

import (
	"net/netip"
	"testing"
)

// A pod that comes with another address is found, also if only one of two families has changed, and
// one that comes with one address before the other is not.
func TestReturns(t *testing.T) {
	r := Returns{}
	for _, c := range []struct {
		pod   string
		addrs []string
		want  int
	}{
		{"kept-0", []string{"10.0.0.2", "fd00::2"}, 0},
		{"kept-1", []string{"10.0.0.3", "fd00::3"}, 0},
		{"kept-0", nil, 0},
		{"kept-0", []string{"10.0.0.2"}, 0},
		{"kept-0", []string{"10.0.0.2", "fd00::4"}, 1},
		{"kept-1", []string{"10.0.0.2", "fd00::3"}, 1},
		{"kept-1", []string{"10.0.0.3", "fd00::3"}, 1},
	} {
		var addrs []netip.Addr
		for _, a := range c.addrs {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		if got := r.Came(c.pod, addrs); len(got) != c.want {
			t.Errorf("%s with %v: %q, want %d changes", c.pod, c.addrs, got, c.want)
		}
	}
}
