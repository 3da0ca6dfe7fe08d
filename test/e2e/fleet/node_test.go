package fleet

import (
	"net/netip"
	"testing"
)

func TestNthSubnet(t *testing.T) {
	network := netip.MustParsePrefix("100.64.0.0/10")
	for _, c := range []struct {
		i    int
		want string
	}{{0, "100.64.0.0/20"}, {1, "100.64.16.0/20"}, {16, "100.65.0.0/20"}, {1023, "100.127.240.0/20"}} {
		if got, ok := nthSubnet(network, c.i, subnetBits); !ok || got.String() != c.want {
			t.Errorf("node %d has %v (%v), want %s", c.i, got, ok, c.want)
		}
	}
	if got, ok := nthSubnet(network, 1024, subnetBits); ok {
		t.Errorf("node 1024 has %v, which is not in %v", got, network)
	}
}
