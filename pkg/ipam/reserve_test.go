package ipam

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// named is an ADD of a pod of the reservation name "registry". The pod has the name of its
// container.
func named(pod string) ask {
	return ask{pod: pod, container: pod, window: hour, reservation: "registry"}
}

// names prints the leases with their reservation names: "10.0.0.2=a(registry)/Bound".
func (w *world) names() string {
	var out []string
	w.view(func(tx *store.Tx) {
		tx.All(func(l lease.Lease, err error) bool {
			word := l.State.String()
			switch {
			case l.Firm:
				word = "Firm"
			case l.Leaving:
				word = "Leaving"
			}
			name := l.Name
			if l.Reservation != "" {
				name += "(" + l.Reservation + ")"
			}
			out = append(out, fmt.Sprintf("%s=%s/%s", l.Address, name, word))
			return true
		})
	})
	return strings.Join(out, " ")
}

func (w *world) leaving(pod string) {
	w.t.Helper()
	w.marks(pod, false)
}

func (w *world) marks(pod string, stays bool) {
	w.t.Helper()
	err := w.service.MarkLeaving(context.Background(),
		[]maintain.LeavingPod{{Namespace: "db", Name: pod, UID: "uid-of-" + pod, Stays: stays}})
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestAReservationNameKeepsAnAddressForAnotherPod(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	w.same("first", w.add(named("a1")), "10.0.0.2,fd00::2")
	for i := range 20 {
		w.stop(fmt.Sprint("a", 1+i))
		other := named(fmt.Sprint("b", i))
		other.reservation = ""
		w.same("another pod", w.add(other), fmt.Sprintf("10.0.0.%d,fd00::%x", 3+i, 3+i))
		w.after(50 * time.Minute)
		w.same("back", w.add(named(fmt.Sprint("a", 2+i))), "10.0.0.2,fd00::2")
	}
	w.stop("a21")
	w.after(hour)
	w.settle()
	w.same("the window is over", w.add(named("a22")), "10.0.0.23,fd00::17")
}

// A pod whose reservation name is another one than before keeps its addresses: all that the same
// pod had, and what is held for its own name. Nothing stays held for the former name.
func TestAChangedReservationName(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	add := func(name, uid, container string) string {
		a := named("a")
		a.reservation, a.uid, a.container = name, uid, container
		return w.add(a)
	}
	w.add(named("b"))
	w.same("without a name", add("", "u1", "c1"), "10.0.0.3,fd00::3")
	for i, c := range []struct{ name, uid string }{
		{"", "u1"}, {"first", "u1"}, {"second", "u1"}, {"", "u1"}, {"third", "u2"}, {"third", "u2"},
	} {
		w.stop(fmt.Sprint("c", 1+i))
		w.settle()
		what := fmt.Sprintf("%q of %s", c.name, c.uid)
		w.same(what, add(c.name, c.uid, fmt.Sprint("c", 2+i)), "10.0.0.3,fd00::3")
	}
	w.same("all", w.names(), "10.0.0.2=b(registry)/Bound 10.0.0.3=a(third)/Bound fd00::2=b(registry)/Bound "+
		"fd00::3=a(third)/Bound")

	w.stop("c7")
	w.settle()
	w.same("another pod, which has no name any more", add("", "u3", "c8"), "10.0.0.4,fd00::4")
	w.same("what the others of the name may use", w.add(ask{pod: "d", container: "d", window: hour,
		reservation: "third"}), "10.0.0.3,fd00::3")
}

// TestAReservationNameIsNoPodName verifies that the addresses of a name are not those of a pod with
// that name, and that namespaces have their own names.
func TestAReservationNameIsNoPodName(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.stop("a1")
	w.same("a pod of that name", w.add(ask{pod: "registry", container: "c1", window: hour}), "10.0.0.3")
	w.stop("c1")
	elsewhere := named("a2")
	elsewhere.namespace = "web"
	w.same("in another namespace", w.add(elsewhere), "10.0.0.4")
	other := named("a3")
	other.reservation = "registry2"
	w.same("another name", w.add(other), "10.0.0.5")
	w.same("the pod that had it, without the name", w.add(ask{pod: "a1", container: "c2", window: hour}), "10.0.0.6")
	w.same("the pod", w.add(ask{pod: "registry", container: "c3", window: hour}), "10.0.0.3")
	w.same("the name", w.add(named("a4")), "10.0.0.2")
}

func TestLivingPodsOfAReservationNameHaveTheirOwnAddresses(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	for i, pod := range []string{"a1", "a2", "a3"} {
		w.same(pod, w.add(named(pod)), fmt.Sprintf("10.0.0.%d,fd00::%d", 2+i, 2+i))
	}
	w.stop("a1")
	w.after(time.Second)
	w.stop("a3")
	w.after(time.Second)
	w.stop("a2")
	w.same("the last one released", w.add(named("b1")), "10.0.0.3,fd00::3")
	w.same("the one before", w.add(named("b2")), "10.0.0.4,fd00::4")
	w.same("again", w.add(named("b2")), "10.0.0.4,fd00::4")
	w.same("the first", w.add(named("b3")), "10.0.0.2,fd00::2")
	w.same("none is left", w.add(named("b4")), "10.0.0.5,fd00::5")
}

// TestDelsAtOneTimeKeepAPodsAddressesTogether verifies that a pod gets both addresses of one former
// pod, also if those of several were released at the same time.
func TestDelsAtOneTimeKeepAPodsAddressesTogether(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	w.add(named("a1"))
	w.add(named("a2"))
	w.reboot()
	w.same("own", w.add(named("a1")), "10.0.0.2,fd00::2")
	w.reboot()
	first, second := w.add(named("b1")), w.add(named("b2"))
	w.same("both", min(first, second)+" "+max(first, second), "10.0.0.2,fd00::2 10.0.0.3,fd00::3")
}

// A pod whose sandbox is made again has its own address, although a sibling's was released later.
func TestAPodPrefersItsOwnAddress(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(named("a2"))
	w.stop("a1")
	w.after(time.Second)
	w.stop("a2")
	again := named("a1")
	again.container, again.uid = "a1-again", "uid-of-a1"
	w.same("its own", w.add(again), "10.0.0.2")
}

// A limit made its hold a soft one, which the pod does not leave for an address that another one is
// about to leave.
func TestAPodWithASoftHoldDoesNotWait(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.5")
	w.options.MaxHeldShare = 0.25
	w.add(named("a1"))
	w.add(named("a2"))
	w.add(named("a3"))
	w.leaving("a3")
	w.stop("a1")
	w.after(time.Second)
	w.stop("a2")
	w.settle()
	w.same("before", w.names(), "10.0.0.2=a1(registry)/Firm 10.0.0.3=a2(registry)/Held 10.0.0.4=a3(registry)/Leaving")
	again := named("a2")
	again.container, again.uid = "a2-again", "uid-of-a2"
	w.same("its own", w.add(again), "10.0.0.3")
	w.stop("a2-again")
	w.settle()
	w.same("the firm one", w.add(named("b1")), "10.0.0.2")
	again.container = "a2-later"
	w.same("its own", w.add(again), "10.0.0.3")
}

func TestAPodWaitsForALeavingOne(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy policy.OnBusy
	}{{"new", policy.New}, {"refuse", policy.Refuse}} {
		w := newWorld(t, "10.0.0.0/24", "fd00::/64")
		w.options.OnBusy = tt.policy
		w.add(named("a1"))
		w.add(named("a2"))
		w.same("nobody leaves", w.add(named("b0")), "10.0.0.4,fd00::4")
		w.leaving("a1")
		w.marks("a1", true)
		w.same("it does not leave", w.names(), "10.0.0.2=a1(registry)/Bound 10.0.0.3=a2(registry)/Bound "+
			"10.0.0.4=b0(registry)/Bound fd00::2=a1(registry)/Bound fd00::3=a2(registry)/Bound "+
			"fd00::4=b0(registry)/Bound")
		w.leaving("a1")
		w.refused(named("b1"), ErrAddressInUse, "10.0.0.2", "container a1")
		w.same("one waits for it", w.add(named("b2")), "10.0.0.5,fd00::5")
		w.after(time.Minute)
		w.refused(named("b1"), ErrAddressInUse)
		w.stop("a1")
		w.same("it has left", w.add(named("b1")), "10.0.0.2,fd00::2")

		w.leaving("a2")
		w.refused(named("b3"), ErrAddressInUse)
		w.after(2*time.Minute - time.Second)
		w.refused(named("b3"), ErrAddressInUse)
		w.after(time.Second)
		if tt.policy == policy.Refuse {
			w.refused(named("b3"), ErrAddressInUse)
			continue
		}
		w.same("busyTimeout is over", w.add(named("b3")), "10.0.0.6,fd00::6")
		w.same("nothing was ended", w.names(), "10.0.0.2=b1(registry)/Bound 10.0.0.3=a2(registry)/Leaving "+
			"10.0.0.4=b0(registry)/Bound 10.0.0.5=b2(registry)/Bound 10.0.0.6=b3(registry)/Bound "+
			"fd00::2=b1(registry)/Bound fd00::3=a2(registry)/Leaving "+
			"fd00::4=b0(registry)/Bound fd00::5=b2(registry)/Bound fd00::6=b3(registry)/Bound")
		w.refused(named("b4"), ErrAddressInUse)
		w.stop("a2")
		w.same("it is held", w.add(named("b4")), "10.0.0.3,fd00::3")
	}
}

// The webhook has seen that a pod is being deleted, and the agent has not yet.
func TestAPodWaitsForAnAddressThatItWasToldOf(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	told := func(pod, addresses string) ask {
		a := named(pod)
		a.expected = addresses
		return a
	}
	for _, pod := range []string{"a1", "a2", "a3"} {
		w.add(named(pod))
	}
	w.refused(told("b1", "10.0.0.2,10.0.0.3"), ErrAddressInUse, "10.0.0.2", "container a1")
	w.refused(told("b2", "10.0.0.2,10.0.0.3"), ErrAddressInUse, "10.0.0.3", "container a2")
	w.same("both have a pod that waits", w.add(told("b3", "10.0.0.2,10.0.0.3")), "10.0.0.5,fd00::5")
	w.same("nobody has it", w.add(told("b4", "10.0.0.77")), "10.0.0.6,fd00::6")
	w.del("a2")
	w.burn("a2")
	w.same("another one has left", w.add(told("b1", "10.0.0.2,10.0.0.3")), "10.0.0.3,fd00::3")
	w.refused(told("b2", "10.0.0.3"), ErrAddressInUse, "10.0.0.3", "container b1")
	w.after(2 * time.Minute)
	w.same("busyTimeout is over", w.add(told("b2", "10.0.0.3")), "10.0.0.7,fd00::7")
}

// An address of one range set is held, and one of each is about to become free.
func TestAPodThatCanClaimDoesNotWait(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.setRanges("10.0.0.0/24", "fd00::/64")
	w.add(named("a2"))
	w.stop("a1")
	w.leaving("a2")
	w.same("what is held", w.add(named("b1")), "10.0.0.2,fd00::3")
	w.refused(named("b2"), ErrAddressInUse, "container a2")
}

// Two pods whose attempts alternate must not put off each other's busyTimeout.
func TestTwoPodsDoNotWaitForOneAddress(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(named("a2"))
	w.leaving("a1")
	w.leaving("a2")
	for range 4 {
		w.refused(named("b1"), ErrAddressInUse)
		w.refused(named("b2"), ErrAddressInUse)
		w.after(20 * time.Second)
	}
	w.same("a third does not wait", w.add(named("b3")), "10.0.0.4")
	w.after(time.Minute)
	w.same("b1", w.add(named("b1")), "10.0.0.5")
	w.same("b2", w.add(named("b2")), "10.0.0.6")
}

// A sandbox may go on after its DEL. Nobody gets what its interface still has, and nobody waits for
// it if something else is held.
func TestAHeldAddressThatIsStillInUseIsLeftOut(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(named("a2"))
	w.stop("a1")
	w.after(time.Second)
	w.del("a2")
	w.same("the free one", w.add(named("b1")), "10.0.0.2")
	w.refused(named("b2"), ErrAddressInUse, "10.0.0.3")
	w.burn("a2")
	w.same("it is gone", w.add(named("b2")), "10.0.0.3")
}

func TestAForceDeletedPodIsNotWaitedFor(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.same("its sandbox lives", w.add(named("b1")), "10.0.0.3")
	w.burn("a1")
	w.same("its sandbox is gone without a DEL", w.add(named("b2")), "10.0.0.2")
	w.same("leases", w.names(), "10.0.0.2=b2(registry)/Bound 10.0.0.3=b1(registry)/Bound")
}

func TestRequestedAddressesOfAReservationName(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(named("a2"))
	w.stop("a1")
	w.after(time.Second)
	w.stop("a2")
	b := named("b1")
	b.requested = "10.0.0.2"
	w.same("as requested", w.add(b), "10.0.0.2")
	w.same("the other one stays", w.add(named("b2")), "10.0.0.3")
	c := named("c1")
	c.requested = "10.0.0.3"
	w.refused(c, ErrUnavailable)
}

// TestRangesWithoutANamedAddress verifies that only holds end if the ranges change, because living
// pods still have the others.
func TestRangesWithoutANamedAddress(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(named("a2"))
	w.stop("a1")
	w.setRanges("10.0.1.0/24")
	w.same("elsewhere", w.add(named("b1")), "10.0.1.2")
	w.same("leases", w.names(), "10.0.0.3=a2(registry)/Bound 10.0.1.2=b1(registry)/Bound")
}

// The runtime passes no annotations, and the agent is first: it has stored the name.
func TestTheNameThatTheAgentHasStored(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	silent := func(pod string) ask { return ask{pod: pod, container: pod, silent: true} }
	name := func(pod string) {
		t.Helper()
		err := w.service.NamePods(context.Background(), []store.PodReservation{{Namespace: "db", Name: pod,
			UID: "uid-of-" + pod, Reservation: "registry", Window: lease.Window(hour)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	stored := func() int {
		v, err := w.service.List(context.Background(), func(lease.Lease) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		return len(v.PodReservations)
	}
	w.same("of a pod without annotations", w.add(silent("x")), "10.0.0.2,fd00::2")
	name("a1")
	name("a1")
	w.same("records", fmt.Sprint(stored()), "1")
	w.same("first", w.add(silent("a1")), "10.0.0.3,fd00::3")
	w.same("records that are left", fmt.Sprint(stored()), "0")
	name("a1")
	w.same("records of a pod that has a lease", fmt.Sprint(stored()), "0")
	w.stop("a1")
	again := silent("a1")
	again.container, again.uid = "a1-again", "uid-of-a1"
	w.same("its sandbox is made again", w.add(again), "10.0.0.3,fd00::3")
	w.stop("a1-again")
	w.same("nothing is known of the next", w.add(silent("b1")), "10.0.0.4,fd00::4")
	name("b2")
	w.same("the next", w.add(silent("b2")), "10.0.0.3,fd00::3")
	w.stop("b2")

	// The agent names the lease of b1 afterwards.
	if err := w.service.Follow(context.Background(), []maintain.PodWindow{{Namespace: "db", Name: "b1",
		UID: "uid-of-b1", Window: lease.Window(hour), Reservation: "registry"}}); err != nil {
		t.Fatal(err)
	}
	w.same("leases", w.names(), "10.0.0.2=x/Bound 10.0.0.3=b2(registry)/Firm 10.0.0.4=b1(registry)/Bound "+
		"fd00::2=x/Bound fd00::3=b2(registry)/Firm fd00::4=b1(registry)/Bound")
	name("c1")
	name("c2")
	w.same("held", w.add(silent("c1")), "10.0.0.3,fd00::3")
	w.stop("b1")
	w.same("held", w.add(silent("c2")), "10.0.0.4,fd00::4")

	name("d1") // never gets a sandbox
	w.after(23 * time.Hour)
	forget := func() {
		t.Helper()
		if err := w.service.ForgetWindows(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	w.same("records after 23 hours", fmt.Sprint(stored()), "1")
	w.after(hour)
	forget()
	w.same("records after a day", fmt.Sprint(stored()), "0")
}

// The record is removed with the first network's ADD; the second one has the name and the window
// from the lease of the first.
func TestAStoredNameInTwoNetworks(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	for _, pod := range []string{"a1", "a2"} {
		if err := w.service.NamePods(context.Background(), []store.PodReservation{{Namespace: "db", Name: pod,
			UID: "uid-of-" + pod, Reservation: "registry", Window: lease.Window(hour)}}); err != nil {
			t.Fatal(err)
		}
		for _, network := range []string{"cbr0", "second"} {
			w.network = network
			w.same(network, w.add(ask{pod: pod, container: pod, silent: true}), "10.0.0.2")
		}
		w.stop(pod)
		w.settle()
		w.same("leases", w.names(), "10.0.0.2="+pod+"(registry)/Firm 10.0.0.2="+pod+"(registry)/Firm")
	}
}

// The pods of one name may have several windows. The agent must not write them in turn.
func TestWindowsOfAReservationNameAreNotStored(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(named("a2"))
	pods := []maintain.PodWindow{
		{Namespace: "db", Name: "a1", UID: "uid-of-a1", Window: lease.Window(hour), Reservation: "registry"},
		{Namespace: "db", Name: "a2", UID: "uid-of-a2", Window: lease.Window(2 * hour), Reservation: "registry"},
	}
	path := filepath.Join(w.service.Store.Dirs().State, "leases.db")
	var before []byte
	for i := range 3 {
		if err := w.service.Follow(context.Background(), pods); err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && string(before) != string(after) {
			t.Error("the agent has written again")
		}
		before = after
	}
}

// The annotations of the runtime are newer than what the agent has stored.
func TestAnnotationsPrecedeAStoredName(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	if err := w.service.NamePods(context.Background(), []store.PodReservation{{Namespace: "db", Name: "a1",
		UID: "uid-of-a1", Reservation: "registry", Window: lease.Window(hour)}}); err != nil {
		t.Fatal(err)
	}
	w.add(ask{pod: "a1", container: "a1"})
	w.same("no annotation", w.names(), "10.0.0.2=a1/Bound")
}

func TestDeferHoldsOfAReservationName(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(ask{pod: "registry", container: "c1", window: hour})
	w.stop("a1")
	w.stop("c1")
	w.settle()
	w.after(59 * time.Minute)
	if err := w.service.Defer(context.Background(), w.refs("a1"), 10*time.Minute); err != nil {
		t.Fatal(err)
	}
	w.after(9 * time.Minute)
	w.same("the pod of that name", w.add(ask{pod: "registry", container: "c2", window: hour}), "10.0.0.4")
	w.same("deferred", w.add(named("b1")), "10.0.0.2")
}

// TestALostStoreKeepsReservationNames verifies that holds come back from the marks in host-local's
// files.
func TestALostStoreKeepsReservationNames(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(named("a2"))
	w.add(named("a3"))
	w.stop("a1")
	w.after(time.Second)
	w.stop("a2")
	w.settle()
	w.same("before", w.names(), "10.0.0.2=a1(registry)/Firm 10.0.0.3=a2(registry)/Firm 10.0.0.4=a3(registry)/Bound")
	w.wipe(w.storeFile())
	b1 := w.add(named("b1"))
	if b1 != "10.0.0.2" && b1 != "10.0.0.3" {
		t.Errorf("after the loss: %s", b1)
	}
	w.same("after the loss", strings.ReplaceAll(w.names(), "b1(registry)/Bound",
		map[string]string{"10.0.0.2": "a1", "10.0.0.3": "a2"}[b1]+"(registry)/Firm"),
		"10.0.0.2=a1(registry)/Firm 10.0.0.3=a2(registry)/Firm 10.0.0.4=/Bound")
}

// TestWithoutReservationNamesNothingChanges verifies that a store has format 1 and no trace of
// names until there is one.
func TestWithoutReservationNamesNothingChanges(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", silent: true})
	a := named("a1")
	a.window = 0 // no effect without a window
	w.add(a)
	w.stop("c1")
	w.leaving("db-1")
	if err := w.service.ForgetWindows(context.Background()); err != nil {
		t.Fatal(err)
	}
	hasNames := func() (has bool) {
		w.view(func(tx *store.Tx) { has = tx.HasNames() })
		return has
	}
	if hasNames() {
		t.Error("the format was raised without a name")
	}
	w.add(named("a2"))
	if !hasNames() {
		t.Error("the format was not raised")
	}
}
