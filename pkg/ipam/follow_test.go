package ipam

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// look is what whoever publishes sees.
func (w *world) look() NodeView {
	w.t.Helper()
	v, err := w.service.Look(context.Background(), func(lease.Lease) bool { return true })
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

func (w *world) follow(uid string, window time.Duration) {
	w.t.Helper()
	if err := w.service.Follow(context.Background(), []PodWindow{{Namespace: "db", Name: "db-0", UID: uid, Window: window}}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) journal() (words []string) {
	w.t.Helper()
	_, err := w.service.Journal(context.Background(), 0, func(_ uint64, n store.Entry) {
		words = append(words, fmt.Sprintf("%s %s: %s", n.Event, n.Name, n.Reason))
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return words
}

// Stock flannel passes no annotations: the agent alone knows the window.
func TestAWindowFromTheAgentKeepsTheAddressAndOutlivesTheAgent(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.same("first", w.add(ask{pod: "db-0", container: "c1", silent: true}), "10.0.0.2")
	w.follow("uid-of-c1", hour)
	w.stop("c1")
	w.after(50 * time.Minute)
	w.same("back", w.add(ask{pod: "db-0", container: "c2", silent: true}), "10.0.0.2")
	w.stop("c2") // no agent saw this one: the window is stored for the key
	w.after(50 * time.Minute)
	w.same("back again", w.add(ask{pod: "db-0", container: "c3", silent: true}), "10.0.0.2")
	w.follow("uid-of-c3", 0)
	w.stop("c3")
	w.same("the annotation was removed", w.add(ask{pod: "db-0", container: "c4", silent: true}), "10.0.0.3")
}

func TestASoftHoldTurnsFirmWhenTheWindowIsLearntLate(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", silent: true})
	w.stop("c1")
	w.same("before", w.leases(), "10.0.0.2=db-0/Held")
	w.follow("another", hour)
	w.same("another pod's window", w.leases(), "10.0.0.2=db-0/Held")
	w.follow("uid-of-c1", hour)
	w.same("after", w.leases(), "10.0.0.2=db-0/Firm")
	w.after(50 * time.Minute)
	w.same("back", w.add(ask{pod: "db-0", container: "c2", silent: true}), "10.0.0.2")
}

func TestFollowingTwiceWritesOnce(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", silent: true})
	p := PodWindow{Namespace: "db", Name: "db-0", UID: "uid-of-c1", Window: hour}
	l := w.look().Leases[0]
	if !FollowsWindow(p, l) || !StoresWindow(p, l, 0, false) {
		t.Fatal("nothing to do at first")
	}
	w.follow(p.UID, hour)
	v := w.look()
	if l = v.Leases[0]; FollowsWindow(p, l) || StoresWindow(p, l, v.Windows[l.Key()], true) {
		t.Errorf("still something to do: %+v, stored %v", l, v.Windows)
	}
}

// The configuration's limits hold for windows that the plugin never saw.
func TestAWindowFromTheAgentObeysTheConfiguration(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.options.MaxWindow = time.Minute
	w.add(ask{pod: "db-0", container: "c1", silent: true})
	w.follow("uid-of-c1", hour)
	w.follow("uid-of-c1", hour)
	if got := w.look().Leases[0].Window; got != time.Minute {
		t.Errorf("maxWindow: %s", got)
	}
	w.same("journal", fmt.Sprint(w.journal()), "[Bound db-0:  Limited db-0: the window of 1h0m0s is cut to 1m0s]")

	w = newWorld(t, "10.0.0.0/24")
	w.options.MaxHeldShare = 0
	w.add(ask{pod: "db-0", container: "c1", silent: true})
	w.follow("uid-of-c1", hour)
	w.stop("c1")
	w.same("maxHeldShare 0", w.leases(), "10.0.0.2=db-0/Held")

	w = newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.5")
	w.options.MaxHeldShare = 0.25
	w.add(ask{pod: "web-0", container: "c1", window: hour})
	w.stop("c1")
	w.add(ask{pod: "db-0", container: "c2", silent: true})
	w.stop("c2")
	w.follow("uid-of-c2", hour)
	w.same("one of four is held", w.leases(), "10.0.0.2=web-0/Firm 10.0.0.3=db-0/Held")
}

func TestTheEndOfAHoldIsPutOffWhileThePodIsExpected(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: time.Minute})
	w.stop("c1")
	w.after(50 * time.Second)
	for range 5 {
		if err := w.service.Defer(context.Background(), []Expected{{"db", "db-0"}, {"db", "nobody"}}, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
		w.after(100 * time.Second)
	}
	w.add(ask{pod: "web-0", container: "w", window: hour})
	w.same("back", w.add(ask{pod: "db-0", container: "c2", window: time.Minute}), "10.0.0.2")
}

func TestGivingUp(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	giveUp := func(leases ...lease.Lease) {
		t.Helper()
		var refs []Ref
		for _, l := range leases {
			refs = append(refs, RefTo(l))
		}
		if err := w.service.GiveUp(context.Background(), refs, "spec.release"); err != nil {
			t.Fatal(err)
		}
	}
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	held := w.look().Leases
	stale := held[0]
	stale.ID = "ffffffffffffffff"
	giveUp(stale)
	w.same("another lease's id", w.leases(), "10.0.0.2=db-0/Firm fd00::2=db-0/Firm")
	giveUp(held...)
	giveUp(held...)
	w.same("a hold", w.leases(), "")

	w.add(ask{pod: "db-0", container: "c2", window: hour})
	if err := w.service.EndHolds(context.Background(), []Ref{RefTo(w.look().Leases[0])}, "it is elsewhere"); err != nil {
		t.Fatal(err)
	}
	w.same("no hold (any more)", w.leases(), "10.0.0.3=db-0/Bound fd00::3=db-0/Bound")
	giveUp(w.look().Leases...)
	w.same("a living pod keeps it", w.leases(), "10.0.0.3=db-0/Bound* fd00::3=db-0/Bound*")
	w.follow("uid-of-c2", hour) // the annotation is still there
	w.stop("c2")
	w.same("and its name does not", w.leases(), "10.0.0.3=db-0/Held* fd00::3=db-0/Held*")
	w.same("back", w.add(ask{pod: "db-0", container: "c3", window: hour}), "10.0.0.4,fd00::4")
}

func TestStoredWindowsGoADayAfterTheLastLease(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	stored := func() (n int) {
		w.view(func(tx *store.Tx) { tx.Windows(func(lease.Key, time.Duration, time.Time) { n++ }) })
		return n
	}
	w.add(ask{pod: "db-0", container: "c1", silent: true})
	w.follow("uid-of-c1", time.Minute)
	pass := func(hours int) {
		for range hours {
			w.after(hour)
			if err := w.service.ForgetWindows(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	pass(48)
	if stored() != 1 {
		t.Error("forgotten while the pod runs")
	}
	w.stop("c1")
	w.after(time.Minute)
	w.add(ask{pod: "web-0", container: "w"}) // sweeps the hold
	pass(23)
	if stored() != 1 {
		t.Error("forgotten too early")
	}
	pass(2)
	if stored() != 0 {
		t.Error("not forgotten")
	}
}

func TestAPoolThatRunsLowSaysSoOnTheWay(t *testing.T) {
	for size, want := range map[int]string{
		20: "[PoolLow db-18: 1 of 20 addresses of range set 10.0.0.2-10.0.0.21 are left]",
		21: "[PoolLow db-18: 2 of 21 addresses of range set 10.0.0.2-10.0.0.22 are left]",
		5:  "[PoolLow db-4: 0 of 5 addresses of range set 10.0.0.2-10.0.0.6 are left]",
	} {
		w := newWorld(t, fmt.Sprintf("10.0.0.0/24 10.0.0.2-10.0.0.%d", size+1))
		for i := range size {
			w.add(ask{pod: fmt.Sprintf("db-%d", i), container: fmt.Sprint("c", i), window: hour})
		}
		var low []string
		for _, word := range w.journal() {
			if word[:5] != "Bound" {
				low = append(low, word)
			}
		}
		w.same("journal", fmt.Sprint(low), want)
	}
}

// More leases and entries than are read under one lock.
func TestALookReadsEverything(t *testing.T) {
	w := newWorld(t, "10.0.0.0/16")
	const n = 2*viewBatch + 7
	for i := range n {
		w.add(ask{pod: fmt.Sprintf("db-%d", i), container: fmt.Sprint("c", i), window: hour})
	}
	if got := w.look(); len(got.Leases) != n || !got.Knows("cbr0") {
		t.Errorf("%d leases, known: %v", len(got.Leases), got.Knows("cbr0"))
	}
	if got := w.journal(); len(got) != n {
		t.Errorf("%d entries", len(got))
	}
}

// What a lost store does not say is not known, until the pool is.
func TestALostStoreKnowsNothingAtFirst(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	if err := os.Truncate(w.service.Store.Dirs().State+"/leases.db", 100); err != nil {
		t.Fatal(err)
	}
	if err := w.service.Store.Update(context.Background(), func(*store.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := w.look(); got.Knows("cbr0") || len(got.Leases) != 0 {
		t.Errorf("known: %v, %v", got.Knows("cbr0"), got.Leases)
	}
	w.add(ask{pod: "db-1", container: "c2", window: hour}) // learns from host-local's files
	if got := w.look(); !got.Knows("cbr0") || got.Knows("another") {
		t.Errorf("known: %v, another: %v", got.Knows("cbr0"), got.Knows("another"))
	}
}
