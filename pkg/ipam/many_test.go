package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// countingHost counts the holders that it is asked for.
type countingHost struct {
	transact.Host
	asked int
}

func (h *countingHost) QuickState(holder lease.Holder, boot string) lease.Liveness {
	h.asked++
	return h.Host.QuickState(holder, boot)
}

// A soft hold is for the pod with its UID. An ADD does not examine those of other pods of the name,
// of which there are many if a pod is recreated repeatedly.
func TestManySoftHoldsOfOneName(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	host := &countingHost{Host: w.service.Host}
	w.service.Host = host
	for i := range 50 {
		name := fmt.Sprint("former-", i)
		w.add(ask{pod: "job", uid: name, container: name})
		w.stop(name)
		w.burn(name)
	}
	host.asked = 0
	w.same("another UID", w.add(ask{pod: "job", uid: "new", container: "new"}), "10.0.0.52")
	if host.asked > 5 {
		t.Errorf("examined %d holders", host.asked)
	}
	w.same("the UID of one of them", w.add(ask{pod: "job", uid: "former-7", container: "back"}), "10.0.0.9")
}

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
