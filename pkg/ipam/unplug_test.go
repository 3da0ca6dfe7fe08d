package ipam

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The DEL came, and the address is still on an interface: ptp and macvlan call IPAM first, and may
// fail after that.
func TestAnAddressThatIsStillPluggedStays(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "vm", container: "c1"})
	w.add(ask{pod: "vm", container: "c1", ifName: "net1"})
	if err := w.service.Release(context.Background(), on("c1", "net1"), w.where()); err != nil {
		t.Fatal(err)
	}
	w.after(hour)
	w.refused(ask{pod: "a", container: "c2"}, ErrExhausted, "1 in cool-down", "but container c1 still has 10.0.0.3")
	w.refused(ask{pod: "a", container: "c2", requested: "10.0.0.3"}, ErrUnavailable)
	w.expect(w.collect(), "", "the collector")
	w.take("c1", w.request(ask{requested: "10.0.0.3"}).Requested[0])
	w.expect(w.collect(), "expire 10.0.0.3", "the collector, when it is off")
	w.same("free", w.add(ask{pod: "a", container: "c2"}), "10.0.0.3")
}

// What cannot be looked at is no proof of anything.
func TestAnUnpluggedAddressStaysWhereNobodyCanLook(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "vm", container: "c1"})
	w.add(ask{pod: "vm", container: "c1", ifName: "net1"})
	w.unplug("c1", "net1")
	w.after(hour)
	path := map[string]bool{"/run/netns/c1": true}
	look := func(story string) {
		t.Helper()
		w.refused(ask{pod: "a", container: "c2"}, ErrExhausted, "1 in cool-down", "the next hold is over, but "+
			"it is unknown whether container c1 still has 10.0.0.3: /run/netns/c1: permission denied")
		w.refused(ask{pod: "a", container: "c2", requested: "10.0.0.3"}, ErrUnavailable)
		if l := w.leaseOf("vm"); l.State == 0 {
			t.Errorf("%s: %+v", story, l)
		}
		w.expect(w.collect(), "", story)
	}
	w.closed = path
	look("the namespace cannot be entered")
	w.closed, w.hidden = nil, path
	look("its path cannot be looked at")
	w.hidden = nil
	w.same("now it can", w.add(ask{pod: "a", container: "c2"}), "10.0.0.3")
}

// A window is a promise to the pod's name, whatever became of the interface. When it is over the
// address tells.
func TestAWindowOutlivesTheInterface(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "vm", container: "c1"})
	w.add(ask{pod: "vm", container: "c1", ifName: "net1", window: hour})
	w.unplug("c1", "net1")
	w.after(59 * time.Minute)
	w.refused(ask{pod: "a", container: "c2"}, ErrExhausted, "1 firmly held")
	w.same("plugged in again", w.add(ask{pod: "vm", container: "c1", ifName: "net1", window: hour}), "10.0.0.3")
	w.unplug("c1", "net1")
	w.after(hour)
	w.same("over", w.add(ask{pod: "a", container: "c2"}), "10.0.0.3")
}

func TestAFirmHoldYieldsOnTheSameProof(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.options.OnExhaustion = policy.Yield
	w.add(ask{pod: "vm", container: "c1"})
	w.add(ask{pod: "vm", container: "c1", ifName: "net1", window: hour})
	if err := w.service.Release(context.Background(), on("c1", "net1"), w.where()); err != nil {
		t.Fatal(err)
	}
	w.refused(ask{pod: "a", container: "c2"}, ErrExhausted, "1 firmly held")
	w.take("c1", w.request(ask{requested: "10.0.0.3"}).Requested[0])
	w.same("unplugged", w.add(ask{pod: "a", container: "c2"}), "10.0.0.3")
}

// Each address tells for itself.
func TestOneOfTwoFamiliesIsStillPlugged(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2", "fd00::/64 fd00::2-fd00::2")
	w.add(ask{pod: "vm", container: "c1"})
	w.del("c1")
	w.take("c1", w.request(ask{requested: "10.0.0.2"}).Requested[0])
	w.after(hour)
	w.expect(w.collect(), "expire 10.0.0.2", "one is off")
	w.same("the other stays", w.leases(), "fd00::2=vm/Held")
}

// A GC that no longer lists the interface of a living pod is as good as its DEL.
func TestAGCOfAnUnpluggedInterface(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.add(ask{container: "plain"})
	w.add(ask{pod: "vm", container: "c1"})
	w.add(ask{pod: "vm", container: "c1", ifName: "net1"})
	gc := func(valid ...lease.Attachment) {
		t.Helper()
		if err := w.service.Collect(context.Background(), w.where().Pool, valid); err != nil {
			t.Fatal(err)
		}
	}
	w.take("c1", w.request(ask{requested: "10.0.0.4"}).Requested[0])
	gc(on("c1", "eth0"))
	w.same("without a pod, and still plugged", w.leases(), "10.0.0.2=/Held 10.0.0.3=vm/Bound 10.0.0.4=vm/Held")
	w.same("off", w.add(ask{pod: "a", container: "c2"}), "10.0.0.4")
	w.refused(ask{pod: "b", container: "c3"}, ErrExhausted, "1 in cool-down")
	w.take("plain", w.request(ask{requested: "10.0.0.2"}).Requested[0])
	w.same("off as well", w.add(ask{pod: "b", container: "c3"}), "10.0.0.2")
}

// A caller without a pod name has its address freed by a GC at once, where it is off the interface
// and where that can be seen.
func TestAGCOfWhatHasNoPod(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "c1"})
	w.add(ask{container: "c2"})
	w.take("c1", w.request(ask{requested: "10.0.0.2"}).Requested[0])
	w.take("c2", w.request(ask{requested: "10.0.0.3"}).Requested[0])
	w.closed = map[string]bool{"/run/netns/c2": true}
	if err := w.service.Collect(context.Background(), w.where().Pool, nil); err != nil {
		t.Fatal(err)
	}
	w.same("one is free", w.leases(), "10.0.0.3=/Held")
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
