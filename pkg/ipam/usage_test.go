package ipam

import (
	"fmt"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// usage returns the usage of each range set, as ranges: size=bound+held+free.
func (w *world) usage() string {
	var out []string
	w.view(func(tx *store.Tx) {
		for _, u := range tx.Usage() {
			out = append(out, fmt.Sprintf("%s: %d=%d+%d+%d", u.Ranges, u.Size, u.Bound, u.Held, u.Free))
		}
	})
	return strings.Join(out, " ")
}

// The leases that host-local has given out before leasehold took its place count like any others,
// in both families.
func TestUsageIncludesAdoptedLeases(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	for i := range 3 {
		w.hostLocal(fmt.Sprint("10.0.0.", 5+i), fmt.Sprint("c", i))
		w.hostLocal(fmt.Sprint("fd00::", 5+i), fmt.Sprint("c", i))
	}
	w.add(ask{pod: "db-0", container: "ours", window: hour})
	w.stop("ours")
	w.same("usage", w.usage(), "10.0.0.1-10.0.0.254: 253=3+1+249 "+
		"fd00::1-fd00::ffff:ffff:ffff:ffff: 18446744073709551615=3+1+18446744073709551611")
}

// An ADD that is refused for want of addresses records the ranges too.
func TestUsageFollowsTheConfiguration(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "c0", window: hour})
	w.add(ask{pod: "db-1", container: "c1", window: hour})
	w.same("first", w.usage(), "10.0.0.2-10.0.0.3: 2=2+0+0")
	w.setRanges("10.0.0.0/24 10.0.0.3-10.0.0.3")
	w.refused(ask{pod: "db-2", container: "c2"}, ErrExhausted)
	w.same("smaller, one lease is outside", w.usage(), "10.0.0.3-10.0.0.3: 1=2+0+0")
	w.setRanges("10.0.0.0/24")
	w.add(ask{pod: "db-2", container: "c2"})
	w.same("larger", w.usage(), "10.0.0.1-10.0.0.254: 253=3+0+250")
}
