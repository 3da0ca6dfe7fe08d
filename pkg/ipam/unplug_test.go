package ipam

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The interfaces of a living pod come and go a thousand times. Nothing piles up, in a pool that has
// room and in one that has not.
func TestAThousandUnpluggedInterfaces(t *testing.T) {
	for story, c := range map[string]struct {
		ranges string
		pause  time.Duration
		most   int // leases at a time
	}{
		"with time between them":  {"10.0.0.0/24", 10 * time.Second, 2 + 2*60/10},
		"at once, in a full pool": {"10.0.0.0/24 10.0.0.2-10.0.0.5", 0, 4},
	} {
		t.Run(story, func(t *testing.T) {
			w := newWorld(t, c.ranges)
			w.add(ask{pod: "vm", container: "c1"})
			for i := range 1000 {
				ifName := fmt.Sprint("net", i)
				w.add(ask{pod: "vm", container: "c1", ifName: ifName})
				w.unplug("c1", ifName)
				w.after(c.pause)
				w.view(func(tx *store.Tx) {
					if n := tx.Len(); n > c.most {
						t.Fatalf("after %d interfaces there are %d leases", i+1, n)
					}
				})
			}
			w.after(hour)
			w.collect()
			w.same("what is left", w.leases(), "10.0.0.2=vm/Bound")
		})
	}
}
