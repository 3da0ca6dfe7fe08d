package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const hour = time.Hour

func TestARecreatedPodComesBackToItsAddress(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	w.same("first", w.add(ask{pod: "db-0", container: "c1", window: hour}), "10.0.0.2,fd00::2")
	w.same("a sibling", w.add(ask{pod: "web-1", container: "c2"}), "10.0.0.3,fd00::3")
	for i := range 5 {
		w.stop(fmt.Sprint("c", 1+10*i))
		w.same("another in between", w.add(ask{pod: "web-1", container: fmt.Sprint("w", i)}),
			fmt.Sprintf("10.0.0.%d,fd00::%d", 4+i, 4+i))
		w.after(50 * time.Minute) // longer than the window in sum
		w.same("back", w.add(ask{pod: "db-0", container: fmt.Sprint("c", 11+10*i), window: hour}), "10.0.0.2,fd00::2")
	}
}

func TestTheWindowEndsAndTheAddressGoesBack(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "c1", window: 3 * time.Second})
	w.stop("c1")
	w.after(2 * time.Second)
	w.add(ask{pod: "web-1", container: "c2"})
	w.refused(ask{pod: "web-2", container: "c3"}, ErrExhausted,
		"no IP addresses available in range set: 10.0.0.2-10.0.0.3", "1 bound, 1 firmly held, 0 in cool-down",
		"2023-11-14T22:13:23Z")
	w.after(time.Second)
	w.same("it is over", w.add(ask{pod: "web-2", container: "c3"}), "10.0.0.2")
}

// One sandbox yields at least three DELs, the last after the
// next one's ADD.
func TestLateDelsOfTheOldSandboxChangeNothing(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "old", window: hour})
	w.stop("old")
	w.add(ask{pod: "db-0", container: "new", window: hour})
	before, err := os.ReadFile(w.service.Store.Dirs().State + "/leases.db")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.del("old")
	}
	after, _ := os.ReadFile(w.service.Store.Dirs().State + "/leases.db")
	if string(before) != string(after) {
		t.Error("a late DEL has written")
	}
	w.same("leases", w.leases(), "10.0.0.2=db-0/Bound")
	if err := w.service.Verify(context.Background(), w.request(ask{pod: "db-0", container: "new"})); err != nil {
		t.Error(err)
	}
	w.same("a third pod", w.add(ask{pod: "web-1", container: "c3"}), "10.0.0.3")
}

// The new set owns the key; where there is no new set, the old one keeps it.
func TestForceDeleteWithAFullPoolLosesNothing(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "old", window: hour})
	w.add(ask{pod: "x", container: "c1"})
	again := ask{pod: "db-0", container: "new", uid: "u2", window: hour}
	w.refused(again, ErrAddressInUse)
	w.after(2 * time.Minute)
	w.refused(again, ErrExhausted)
	w.stop("old")
	w.same("its own", w.add(again), "10.0.0.2")
}

func TestForceDeleteTakesOverOnceTheOldSandboxIsGone(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "old", window: hour})
	w.refused(ask{pod: "db-0", container: "new1", uid: "u2", window: hour}, ErrAddressInUse)
	w.inPID[w.netns["/run/netns/old"]] = true
	w.burn("old") // unmounted, but a process lives in it
	w.refused(ask{pod: "db-0", container: "new2", uid: "u2", window: hour}, ErrAddressInUse)
	clear(w.inPID)
	w.blind = true // now nothing can be proven
	w.refused(ask{pod: "db-0", container: "new3", uid: "u2", window: hour}, ErrAddressInUse)
	w.blind = false
	w.same("gone without a DEL", w.add(ask{pod: "db-0", container: "new4", uid: "u2", window: hour}), "10.0.0.2")
	w.del("old")
	w.same("and its DEL comes late", w.leases(), "10.0.0.2=db-0/Bound")
}

// Without a window a pod gets what host-local gives: the next address.
func TestWithoutAnAnnotation(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.add(ask{pod: "web-1", container: "c1"})
	w.same("two at once", w.add(ask{pod: "web-1", container: "c2"}), "10.0.0.3")
	w.stop("c1")
	w.same("the next, not the one in cool-down", w.add(ask{pod: "web-1", container: "c3"}), "10.0.0.4")
	w.same("nothing else is left", w.add(ask{pod: "web-9", container: "c4"}), "10.0.0.2")
}

// A crashed sandbox of the same pod; its DEL comes first.
func TestTheSamePodKeepsItsAddressThroughASandboxCrash(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "web-1", container: "c1", uid: "u1"})
	w.stop("c1")
	w.same("same UID", w.add(ask{pod: "web-1", container: "c2", uid: "u1"}), "10.0.0.2")
	w.burn("c2") // no DEL at all
	w.same("same UID, no DEL", w.add(ask{pod: "web-1", container: "c3", uid: "u1"}), "10.0.0.2")
	w.stop("c3")
	w.same("another UID", w.add(ask{pod: "web-1", container: "c4", uid: "u2"}), "10.0.0.3")
}

// A cool-down promises nothing: it is no reason to wait.
func TestAPodWithoutAWindowDoesNotWaitForItsOldSandbox(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "web-1", container: "c1", uid: "u1"})
	w.del("c1") // its namespace is still there
	w.same("at once", w.add(ask{pod: "web-1", container: "c2", uid: "u1"}), "10.0.0.3")
}

func TestAHoldIsNotClaimedWhileItsLastHolderLives(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.del("c1") // ptp: IPAM first, then the link
	w.refused(ask{pod: "db-0", container: "c2", window: hour}, ErrAddressInUse)
	w.same("its own namespace is no obstacle",
		w.add(ask{pod: "db-0", container: "c3", window: hour, netns: "/run/netns/c1"}), "10.0.0.2")
	w.add(ask{pod: "web-1", container: "c4"})
	w.del("c4")
	w.refused(ask{pod: "web-2", container: "c5"}, ErrExhausted, "1 in cool-down")
	w.burn("c4")
	w.same("now", w.add(ask{pod: "web-2", container: "c5"}), "10.0.0.3")
}

func TestAllOrNothing(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64 fd00::2-fd00::2")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.refused(ask{pod: "db-1", container: "c2", window: hour}, ErrExhausted, "fd00::2-fd00::2")
	w.same("leases", w.leases(), "10.0.0.2=db-0/Bound fd00::2=db-0/Bound")
	w.stop("c1")
	w.refused(ask{pod: "db-1", container: "c3", window: hour}, ErrExhausted)
	w.same("back, both", w.add(ask{pod: "db-0", container: "c4", window: hour}), "10.0.0.2,fd00::2")
}

func TestAFamilyThatIsAddedLaterIsFreshAndTheOldAddressStays(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", window: hour})
	w.stop("c2")
	w.setRanges("fd00::/64", "10.0.0.0/24")
	w.same("both", w.add(ask{pod: "db-1", container: "c3", window: hour}), "fd00::2,10.0.0.3")
}

func TestAHoldOutsideTheRangesIsVoid(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	w.setRanges("10.77.0.0/24")
	w.same("another subnet", w.add(ask{pod: "db-0", container: "c2", window: hour}), "10.77.0.2")
	w.same("the old one is gone", w.leases(), "10.77.0.2=db-0/Bound")
}

func TestRequestedAddresses(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.same("free", w.add(ask{pod: "db-0", container: "c1", window: hour, requested: "10.0.0.50"}), "10.0.0.50")
	w.refused(ask{pod: "x", container: "c2", requested: "10.0.0.50"}, ErrUnavailable, "belongs to pod db/db-0")
	w.stop("c1")
	w.refused(ask{pod: "x", container: "c2", requested: "10.0.0.50"}, ErrUnavailable,
		"held for pod db/db-0 until 2023-11-14T23:13:20Z")
	w.refused(ask{pod: "x", namespace: "web", container: "c2", requested: "10.0.0.50"}, ErrUnavailable,
		"is held for a pod of another namespace until 2023-11-14T23:13:20Z")
	w.same("its own hold", w.add(ask{pod: "db-0", container: "c3", window: hour, requested: "10.0.0.50"}), "10.0.0.50")
	w.stop("c3")
	w.same("the request wins", w.add(ask{pod: "db-0", container: "c4", window: hour, requested: "10.0.0.60"}),
		"10.0.0.60")
	w.same("the hold is dropped", w.leases(), "10.0.0.60=db-0/Bound")
	if want := "Revoked db-0: the pod asked for another address"; !slices.Contains(w.journal(), want) {
		t.Errorf("journal %q, want %q", w.journal(), want)
	}
	w.same("beside a container of the same namespace", w.add(ask{pod: "db-0", container: "c4b", window: hour,
		netns: "/run/netns/c4", requested: "10.0.0.60"}), "10.0.0.60")
	w.same("the request wins again", w.add(ask{pod: "db-0", container: "c4c", window: hour,
		netns: "/run/netns/c4", requested: "10.0.0.61"}), "10.0.0.61")
	w.same("the living container keeps its address", w.leases(), "10.0.0.60=db-0/Bound* 10.0.0.61=db-0/Bound")
	w.refused(ask{pod: "y", container: "c5", requested: "10.0.0.1"}, ErrRequest, "gateway")
	w.refused(ask{pod: "y", container: "c5", requested: "10.9.9.9"}, ErrRequest,
		"failed to allocate all requested IPs: 10.9.9.9")
	w.same("the cursor follows a request, as host-local's", w.add(ask{pod: "z", container: "c6"}), "10.0.0.62")
}

// In a range over several /24 an address that ends in 0 or 255 is one like any other.
func TestARangeOverSeveral24(t *testing.T) {
	w := newWorld(t, "10.0.0.0/16 10.0.0.253-10.0.1.1")
	for i, want := range []string{"10.0.0.253", "10.0.0.254", "10.0.0.255", "10.0.1.0", "10.0.1.1"} {
		w.same("next", w.add(ask{container: fmt.Sprint("c", i)}), want)
	}
	w.refused(ask{container: "x"}, ErrExhausted, "5 bound")
}

// Neither the end of a window nor a request takes an address from an interface.
func TestARequestDoesNotTakeAnAddressThatIsOnAnInterface(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: time.Minute})
	w.del("c1") // the interface stays
	w.after(time.Hour)
	w.refused(ask{pod: "x", container: "c2", requested: "10.0.0.2"}, ErrUnavailable, "held for pod db/db-0")
	w.burn("c1")
	w.same("now", w.add(ask{pod: "x", container: "c3", requested: "10.0.0.2"}), "10.0.0.2")
}

// Without an agent nobody else finds out that the holder of a requested address is gone.
func TestARequestedAddressOfADeadHolder(t *testing.T) {
	for _, c := range []struct {
		story string
		lose  func(w *world)
		free  bool
	}{
		{"it lives", func(*world) {}, false},
		{"its sandbox is gone", func(w *world) { w.burn("c1") }, true},
		{"a process lives on in its sandbox", func(w *world) {
			w.inPID[w.netns["/run/netns/c1"]] = true
			w.burn("c1")
		}, false},
		{"nothing can be proven", func(w *world) { w.burn("c1"); w.blind = true }, false},
		{"host-local has processed its DEL", func(w *world) {
			w.burn("c1")
			w.wipe(w.path("10.0.0.50"))
		}, true},
	} {
		for _, a := range []ask{{pod: "db-0", container: "c1"}, {container: "c1"},
			{pod: "db-0", container: "c1", window: hour}} {
			w := newWorld(t, "10.0.0.0/24")
			a.requested = "10.0.0.50"
			w.add(a)
			c.lose(w)
			next := ask{pod: "x", container: "c2", requested: "10.0.0.50"}
			if c.free && a.window == 0 {
				w.same(c.story, w.add(next), "10.0.0.50")
				w.same(c.story, w.leases(), "10.0.0.50=x/Bound")
				continue
			}
			w.refused(next, ErrUnavailable)
			if !c.free {
				continue
			}
			w.refused(next, ErrUnavailable, "held for pod db/db-0 until")
			w.after(hour)
			w.same(c.story+", and its window is over", w.add(next), "10.0.0.50")
		}
	}
}

// Of a firm hold and a soft one of the same pod it gets back that of the firm one.
func TestAFirmHoldIsClaimedBeforeASoftOne(t *testing.T) {
	for _, firm := range []string{"10.0.0.3", "10.0.0.5"} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(ask{pod: "db-0", container: "c1", uid: "u1", requested: "10.0.0.4"})
		w.stop("c1")
		w.add(ask{pod: "db-0", container: "c2", uid: "u1", window: hour, requested: firm})
		w.stop("c2")
		w.same("back", w.add(ask{pod: "db-0", container: "c3", uid: "u1", window: hour}), firm)
	}
}

func TestAClaimDoesNotMoveTheCursor(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "a", container: "c2"})
	w.stop("c1")
	w.add(ask{pod: "db-0", container: "c3", window: hour})
	w.same("next", w.add(ask{pod: "b", container: "c4"}), "10.0.0.4")
}

func TestAReboot(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.5")
	w.add(ask{pod: "db-0", container: "c1", uid: "u1", window: hour})
	w.add(ask{pod: "web-1", container: "c2", uid: "u2"})
	w.add(ask{container: "keyless"})
	w.add(ask{pod: "db-1", container: "c3", window: hour})
	w.reboot()
	w.same("a pod with a window, replaced meanwhile", w.add(ask{pod: "db-0", container: "d1", uid: "u9", window: hour}),
		"10.0.0.2")
	w.same("the same pod without one", w.add(ask{pod: "web-1", container: "d2", uid: "u2"}), "10.0.0.3")
	w.same("the rest", w.leases(), "10.0.0.2=db-0/Bound 10.0.0.3=web-1/Bound 10.0.0.5=db-1/Firm")
	w.del("c1") // kubelet's GC, late, with empty netns
	w.same("late", w.add(ask{pod: "x", container: "d3"}), "10.0.0.4")
}

// Nobody collects but the plugin: no agent, no DEL.
func TestAFullPoolLooksForTheDead(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.add(ask{pod: "a", container: "c1"})
	w.add(ask{pod: "b", container: "c2"})
	w.add(ask{pod: "c", container: "c3", window: hour})
	w.burn("c2")
	w.burn("c3")
	w.same("the unpromised one", w.add(ask{pod: "d", container: "c4"}), "10.0.0.3")
	w.burn("c4")
	w.refused(ask{pod: "e", container: "c5"}, ErrExhausted, "2 bound, 1 firmly held")
	w.after(lookEvery)
	w.same("later", w.add(ask{pod: "e", container: "c5"}), "10.0.0.3")
	w.same("the promised one comes back", w.add(ask{pod: "c", container: "c6", window: hour}), "10.0.0.4")
}

// Addresses of the dead are given again within lookEvery, whatever else is full: the look of one
// pool or range set keeps no other one from being looked through.
func TestEveryFullPoolLooksForTheDead(t *testing.T) {
	fill := func(w *world, pods ...string) {
		for _, pod := range pods {
			w.add(ask{pod: pod, container: w.network + "-" + pod})
			w.burn(w.network + "-" + pod)
		}
	}
	t.Run("two range sets of one call", func(t *testing.T) {
		w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3", "fd00::/64 fd00::2-fd00::3")
		fill(w, "a", "b")
		w.same("both have dead holders", w.add(ask{pod: "c", container: "c3"}), "10.0.0.2,fd00::2")
		w.same("and cool-downs now", w.add(ask{pod: "d", container: "c4"}), "10.0.0.3,fd00::3")
		w.burn("c4")
		w.refused(ask{pod: "e", container: "c5"}, ErrExhausted)
		w.after(lookEvery)
		w.same("the next look", w.add(ask{pod: "e", container: "c5"}), "10.0.0.3,fd00::3")
	})
	t.Run("two networks in turn", func(t *testing.T) {
		w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
		for _, w.network = range []string{"blue", "red"} {
			fill(w, "a", "b")
		}
		for _, w.network = range []string{"blue", "red"} {
			w.same(w.network, w.add(ask{pod: "c", container: w.network + "-c"}), "10.0.0.2")
		}
	})
	t.Run("configurations with other ranges in turn", func(t *testing.T) {
		w := newWorld(t)
		ranges := []string{"10.0.0.0/24 10.0.0.2-10.0.0.3", "10.0.1.0/24 10.0.1.2-10.0.1.3"}
		for i, r := range ranges {
			w.setRanges(r)
			fill(w, fmt.Sprint("a", i), fmt.Sprint("b", i))
		}
		for i, r := range ranges {
			w.setRanges(r)
			w.same(r, w.add(ask{pod: fmt.Sprint("c", i), container: fmt.Sprint("c", i)}), fmt.Sprintf("10.0.%d.2", i))
		}
	})
	t.Run("the pod's own address in one set, a full one in the other", func(t *testing.T) {
		w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
		w.add(ask{pod: "db-0", container: "c1", window: hour})
		w.add(ask{pod: "a", container: "c2"})
		w.setRanges("fd00::/64 fd00::2-fd00::2")
		w.add(ask{pod: "b", container: "c3"})
		w.burn("c1")
		w.burn("c3")
		w.setRanges("10.0.0.0/24 10.0.0.2-10.0.0.3", "fd00::/64 fd00::2-fd00::2")
		w.same("taken over, and collected", w.add(ask{pod: "db-0", container: "c4", window: hour}), "10.0.0.2,fd00::2")
		w.same("journal of its own address", w.eventsOf("10.0.0.2"), "Bound TakenOver")
	})
}

// eventsOf prints the journal of an address.
func (w *world) eventsOf(addr string) string {
	var out []string
	w.view(func(tx *store.Tx) {
		tx.Journal(func(n store.Entry) bool {
			if n.Address == netip.MustParseAddr(addr) {
				out = append(out, string(n.Event))
			}
			return true
		})
	})
	return strings.Join(out, " ")
}

// Of two leases of one number the later one has it, also where its mount is gone and processes
// alone live in it.
func TestTheLaterLeaseOfANamespaceNumberIsTheLivingOne(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "a", container: "c2"})
	w.burn("c2")
	w.after(time.Second)
	w.last-- // the number is given again
	w.add(ask{pod: "b", container: "c1"})
	w.burn("c1")
	w.inPID[w.last] = true
	w.same("found dead", w.add(ask{pod: "c", container: "c3"}), "10.0.0.2")
	w.same("the other lives", w.leases(), "10.0.0.2=c/Bound 10.0.0.3=b/Bound")
}

// Whether a path leads to the namespace of the old sandbox is unknown if the path cannot be
// looked at.
func TestAPathThatCannotBeLookedAtProvesNothing(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "old", window: hour})
	w.hidden = map[string]bool{"/run/netns/old": true}
	w.refused(ask{pod: "db-0", container: "new1", uid: "u2", window: hour}, ErrAddressInUse)
	w.hidden = nil
	w.burn("old")
	w.same("gone", w.add(ask{pod: "db-0", container: "new2", uid: "u2", window: hour}), "10.0.0.2")
}

// Where the boot id cannot be read everybody may be alive.
func TestAnUnreadableBootIDProvesNobodyDead(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.now.BootID = ""
	w.refused(ask{pod: "x", container: "c2"}, ErrExhausted, "1 bound")
	w.refused(ask{pod: "db-0", container: "c3", uid: "u2", window: hour}, ErrAddressInUse)
}

func TestTheNumberOfTheOldNamespaceIsGivenToThePodsOwnNewOne(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "old", window: hour})
	number := w.netns["/run/netns/old"]
	w.burn("old") // no DEL comes
	w.netns["/run/netns/new"] = number
	w.netns["/run/netns/of-a-pod-that-starts"] = number
	w.same("what is mounted is no obstacle", w.add(ask{pod: "db-0", container: "new", uid: "u2", window: hour}),
		"10.0.0.2")
}

// One ADD tidies up a few holds, and all of the range set that it needs an address of.
func TestAFullRangeSetIsTidiedUpWhole(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	for i := range expireBatch + 1 {
		container := fmt.Sprint("c", i)
		w.add(ask{pod: fmt.Sprint("db-", i), container: container, window: time.Minute})
		w.stop(container)
	}
	w.setRanges("fd00::/64 fd00::2-fd00::2")
	w.add(ask{pod: "last", container: "l", window: 2 * time.Minute})
	w.stop("l")
	w.after(hour)
	w.same("its hold is over, as all are", w.add(ask{pod: "x", container: "x"}), "fd00::2")
}

func TestFirmHoldsYieldWhereThePolicySaysSo(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "c1", window: 2 * hour})
	w.add(ask{pod: "db-1", container: "c2", window: hour})
	w.stop("c1")
	w.stop("c2")
	w.refused(ask{pod: "x", container: "c3"}, ErrExhausted)
	w.options.OnExhaustion = policy.Fail
	w.refused(ask{pod: "x", namespace: "web", container: "c3"}, ErrExhausted)
	w.options.OnExhaustion = policy.Yield
	w.same("nearest to its end", w.add(ask{pod: "x", container: "c3"}), "10.0.0.3")
}

// Holds yield in this order: soft ones, the oldest first, and then firm ones, the earliest end
// first. Of two that end at the same time the older yields first.
func TestOrderInWhichHoldsYield(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.9")
	w.options.OnExhaustion, w.options.SoftHold = policy.Yield, 24*hour
	const forever = time.Duration(lease.Forever)
	windows := []time.Duration{forever, 3 * hour, 0, 2 * hour, forever, 0, 3*hour - time.Minute, 0}
	for i, window := range windows { // addresses 2 to 9
		w.add(ask{pod: fmt.Sprint("db-", i+2), container: fmt.Sprint("c", i+2), window: window})
	}
	for _, i := range []int{4, 5, 7, 9, 2, 3, 8, 6} { // 3 and 8 end at the same time
		w.after(time.Minute)
		w.stop(fmt.Sprint("c", i))
	}
	for i, want := range []int{4, 7, 9, 5, 3, 8, 2, 6} {
		w.same(fmt.Sprint("the one that yields as number ", i+1), w.add(ask{pod: fmt.Sprint("x", i),
			container: fmt.Sprint("x", i)}), fmt.Sprint("10.0.0.", want))
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.5")
	w.options.MaxHeldShare = 0.5
	w.options.MaxWindow = lease.Window(10 * time.Minute)
	for i := range 3 {
		w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: time.Duration(lease.Forever)})
	}
	for i := range 3 {
		w.stop(fmt.Sprint("c", i))
	}
	w.same("two of four", w.leases(), "10.0.0.2=db-0/Firm 10.0.0.3=db-1/Firm 10.0.0.4=db-2/Held")
	w.same("which the journal says", w.journal()[len(w.journal())-1],
		"Limited db-2: maxHeldShare is reached: the hold is a short one")
	w.after(10 * time.Minute)
	w.same("cut to maxWindow", w.add(ask{pod: "x", container: "x"}), "10.0.0.5")
	w.same("all over", w.leases(), "10.0.0.5=x/Bound")
	w.options.MaxHeldShare = 0
	w.add(ask{pod: "db-9", container: "c9", window: hour})
	w.stop("c9")
	w.same("nothing may be kept", w.leases(), "10.0.0.2=db-9/Held 10.0.0.5=x/Bound")
}

func TestWhatTheCallerIsToldOfTheWindow(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	silent := func(container string) ask { return ask{pod: "db-0", container: container, silent: true} }
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	w.same("no annotations: what is stored stays", w.add(silent("c2")), "10.0.0.2")
	w.stop("c2")
	w.same("and again", w.add(silent("c3")), "10.0.0.2")
	w.stop("c3")
	w.same("annotations without the key: claimed, then over", w.add(ask{pod: "db-0", container: "c4"}), "10.0.0.2")
	w.stop("c4")
	w.same("over", w.add(silent("c5")), "10.0.0.3")
	w.options.DefaultWindow = lease.Window(hour)
	w.add(ask{pod: "web-1", container: "d1", silent: true})
	w.stop("d1")
	w.same("the configured default", w.add(ask{pod: "web-1", container: "d2", silent: true}), "10.0.0.4")
}

func TestGC(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", window: hour})
	w.add(ask{container: "keyless"})
	w.network = "other"
	w.add(ask{pod: "db-0", container: "c1", ifName: "net1", window: hour})
	p := w.request(ask{}).Pool
	p.Network = "cbr0"
	if err := w.service.Collect(context.Background(), p, []lease.Attachment{on("c2", "eth0")}); err != nil {
		t.Fatal(err)
	}
	w.same("leases", w.leases(), "10.0.0.2=db-0/Firm 10.0.0.3=db-1/Bound 10.0.0.4=/Held 10.0.0.2=db-0/Bound")
}

func TestADelThatFindsTheStoreLockedIsSpooled(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := w.service.Store.Update(context.Background(), store.Options{}, func(*store.Tx) error { // holds the lock
		return w.service.Release(ctx, on("c1", "eth0"), PoolHint{})
	})
	if err != nil || len(w.warned) != 1 {
		t.Fatalf("%v, warned %q", err, w.warned)
	}
	w.burn("c1")
	w.after(50 * time.Minute)
	w.same("the DEL is not replayed yet", w.recorded(), "db-0=Bound")
	w.same("and is seen as done", w.leases(), "10.0.0.2=db-0/Firm")
	w.refused(ask{pod: "x", container: "c2"}, ErrExhausted, "1 firmly held")
	w.after(10 * time.Minute)
	w.same("the window began at the DEL", w.add(ask{pod: "x", container: "c2"}), "10.0.0.2")
}

func TestCheck(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	verify := func(container string, prev ...string) error {
		r := w.request(ask{pod: "db-0", container: container})
		for _, p := range prev {
			r.PrevKnown = true
			r.Prev = append(r.Prev, w.request(ask{requested: p}).Requested...)
		}
		return w.service.Verify(context.Background(), r)
	}
	if err := verify("c1"); !errors.Is(err, ErrCheckFailed) {
		t.Errorf("before any ADD: %v", err)
	}
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	for _, c := range []struct {
		story string
		err   error
		ok    bool
	}{
		{"the holder", verify("c1"), true},
		{"with its address", verify("c1", "10.0.0.2"), true},
		{"and one of another plugin", verify("c1", "10.0.0.2", "192.168.0.7"), true},
		{"with another of ours", verify("c1", "10.0.0.2", "10.0.0.3"), false},
		{"without its address", verify("c1", "192.168.0.7"), false},
		{"somebody else", verify("c2"), false},
	} {
		if (c.err == nil) != c.ok || c.err != nil && !errors.Is(c.err, ErrCheckFailed) {
			t.Errorf("%s: %v", c.story, c.err)
		}
	}
}

func TestAnOperatorReleases(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	all := func(lease.Lease) bool { return true }
	revoke := func(force bool) string {
		done, err := w.service.Revoke(context.Background(), all, force, "by hand")
		if err != nil || len(done) != 1 {
			t.Fatalf("%+v %v", done, err)
		}
		return fmt.Sprint(errors.Is(done[0].Err, lease.ErrHolderAlive))
	}
	w.same("it lives", revoke(false), "true")
	w.same("forced", revoke(true), "false")
	w.add(ask{pod: "db-0", container: "c2", window: hour})
	w.stop("c2")
	w.same("held", revoke(false), "false")
	w.same("leases", w.leases(), "")
	for i := range 3 {
		w.add(ask{pod: fmt.Sprint("web-", i), container: fmt.Sprint("w", i), window: hour})
		w.stop(fmt.Sprint("w", i))
	}
	one := func(l lease.Lease) bool { return l.Name == "web-2" }
	if done, err := w.service.Revoke(context.Background(), one, false, "by hand"); err != nil || len(done) != 1 {
		t.Errorf("%+v %v", done, err)
	}
	w.same("one of three", w.leases(), "10.0.0.4=web-0/Firm 10.0.0.5=web-1/Firm")
}
