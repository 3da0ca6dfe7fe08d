package ipam

import (
	"net/netip"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

func TestHeldLimit(t *testing.T) {
	r, err := pool.NewRange(netip.MustParsePrefix("10.0.0.0/28"), netip.Addr{}, netip.Addr{}, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	set := pool.Set{r} // 13 addresses
	for share, want := range map[float64]int{
		0: lease.NoneHeld, 0.01: 1, 0.5: 6, 0.999: 12, 1: 0, 1.5: 0, 2: 0,
	} {
		if got := heldLimit(set, share); got != want {
			t.Errorf("a share of %v: %d, want %d", share, got, want)
		}
	}
}
