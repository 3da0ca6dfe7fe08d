package ipam

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// look returns the leases as the agent publishes them.
func (w *world) look() maintain.NodeView {
	w.t.Helper()
	v, err := w.service.List(context.Background(), func(lease.Lease) bool { return true })
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

func (w *world) follow(uid string, window time.Duration) {
	w.t.Helper()
	w.followPod(maintain.PodWindow{Namespace: "db", Name: "db-0", UID: uid, Window: lease.Window(window)})
}

func (w *world) followPod(pod maintain.PodWindow) {
	w.t.Helper()
	w.must(w.service.Follow(context.Background(), []maintain.PodWindow{pod}))
}

func (w *world) journal() (words []string) {
	w.t.Helper()
	entries, _, err := w.service.Journal(context.Background(), 0)
	w.must(err)
	for _, n := range entries {
		words = append(words, fmt.Sprintf("%s %s: %s", n.Event, n.Name, n.Reason))
	}
	return words
}

func TestFollowingTwiceWritesOnce(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", silent: true})
	p := maintain.PodWindow{Namespace: "db", Name: "db-0", UID: "uid-of-c1", Window: lease.Window(hour)}
	l := w.look().Leases[0]
	if !maintain.FollowsWindow(p, l) {
		t.Fatal("nothing to do at first")
	}
	w.follow(p.UID, hour)
	v := w.look()
	if l = v.Leases[0]; maintain.FollowsWindow(p, l) {
		t.Errorf("still something to do: %+v", l)
	}
}

// revokePods revokes the leases of one pod.
func (w *world) revokePods(ctx context.Context, leases ...lease.Lease) error {
	var refs []maintain.Ref
	for _, l := range leases {
		refs = append(refs, maintain.RefTo(l))
	}
	return w.service.RevokePods(ctx, [][]maintain.Ref{refs}, "spec.release")
}

// Where nobody knows whose view it is, the living look dead.
func TestNothingIsGivenUpOnAViewThatIsNotProven(t *testing.T) {
	for story, breakIt := range map[string]func(*world){
		"another process namespace":  func(w *world) { w.spaces = "elsewhere"; clear(w.netns) },
		"a kernel with its own boot": func(w *world) { w.now.BootID = "sandbox" },
	} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(ask{pod: "db-0", container: "c1", window: hour})
		w.add(ask{pod: "db-1", container: "c2", window: hour})
		w.del("c2")
		before := w.leases()
		all := w.look().Leases
		breakIt(w)
		if err := w.revokePods(context.Background(), all...); !errors.Is(err, transact.ErrNoHostView) {
			t.Errorf("%s: spec.release: %v", story, err)
		}
		if err := w.service.EndHolds(context.Background(), [][]maintain.Ref{{maintain.RefTo(all[1])}},
			"moved"); !errors.Is(err, transact.ErrNoHostView) {
			t.Errorf("%s: moveGrace: %v", story, err)
		}
		w.same(story, w.leases(), before)
	}
}

// What a pod has in one network does not go without what it has in another.
func TestAPodsAddressesAreGivenUpTogether(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	var pods [][]maintain.Ref
	for i := range 15 {
		pod, container := fmt.Sprint("web-", i), fmt.Sprint("w", i)
		w.add(ask{pod: pod, container: container, window: hour})
		w.stop(container)
		pods = append(pods, []maintain.Ref{maintain.RefTo(w.leaseOf(pod))})
	}
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.network = "second"
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	var both []maintain.Ref
	for _, l := range w.look().Leases {
		if l.Name == "db-0" {
			both = append(both, maintain.RefTo(l))
		}
	}
	lock, err := store.LockFile(context.Background(), w.path("lock"))
	if err != nil {
		t.Fatal(err)
	}
	err = w.service.RevokePods(context.Background(), append(pods, both), "spec.release")
	if !errors.Is(err, store.ErrBusy) {
		t.Errorf("while the second network is busy: %v", err)
	}
	w.same("while the second network is busy", w.leases(), "10.0.0.17=db-0/Firm 10.0.0.2=db-0/Firm")
	lock.Close()
	if err := w.service.RevokePods(context.Background(), append(pods, both), "spec.release"); err != nil {
		t.Error(err)
	}
	w.same("given up", w.leases(), "")
}

// host-local's lock is awaited while the store's is not held, which every plugin needs.
func TestTheAgentDoesNotWaitForHostLocalWithTheStoreInHand(t *testing.T) {
	ctx := context.Background()
	pod := maintain.PodWindow{Namespace: "db", Name: "db-0", UID: "uid-of-c1", Window: lease.Window(2 * hour)}
	for story, act := range map[string]func(*world, context.Context) error{
		"Follow": func(w *world, ctx context.Context) error { return w.service.Follow(ctx, []maintain.PodWindow{pod}) },
		"Defer": func(w *world, ctx context.Context) error {
			return w.service.Defer(ctx, w.refs("db-0"), 2*hour)
		},
		"RevokePods": func(w *world, ctx context.Context) error { return w.revokePods(ctx, w.look().Leases...) },
		"RecordMAC": func(w *world, ctx context.Context) error {
			return w.service.RecordMAC(ctx, on("c2", "eth0"), net.HardwareAddr{2, 0, 0, 0, 0, 1})
		},
		"EndHolds": func(w *world, ctx context.Context) error {
			return w.service.EndHolds(ctx, [][]maintain.Ref{{maintain.RefTo(w.look().Leases[0])}}, "moved")
		},
		"Act, of a damaged record": func(w *world, ctx context.Context) error {
			spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
			_, err := w.service.Act(ctx, maintain.Plan(w.survey()))
			return err
		},
	} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(ask{pod: "db-0", container: "c1", window: hour})
		w.stop("c1")
		w.add(ask{pod: "db-1", container: "c2", window: hour})
		lock, err := store.LockFile(ctx, w.path("lock"))
		if err != nil {
			t.Fatal(err)
		}
		var longest time.Duration
		w.service.Store.Timed = func(t store.Timing) { longest = max(longest, t.Held) }
		err = act(w, ctx)
		if !errors.Is(err, store.ErrBusy) || longest >= store.MaxWait {
			t.Errorf("%s while host-local is busy: it had the store for %s: %v", story, longest, err)
		}
		w.service.Store.Timed = func(store.Timing) { lock.Close() } // after its first try
		if err := act(w, ctx); err != nil {
			t.Errorf("%s when host-local is done: %v", story, err)
		}
	}
}

func TestAPoolThatRunsLowSaysSoOnTheWay(t *testing.T) {
	for size, want := range map[int]string{
		20: "[PoolLow db-18: 1 of 20 addresses of range set 10.0.0.2-10.0.0.21 are left]",
		21: "[PoolLow db-18: 2 of 21 addresses of range set 10.0.0.2-10.0.0.22 are left]",
		1:  "[PoolLow db-0: 0 of 1 addresses of range set 10.0.0.2-10.0.0.2 are left]",
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

// A network may be in several pools: it is known when all of them are.
func TestANetworkIsKnownWhenEachOfItsPoolsIs(t *testing.T) {
	for _, first := range []string{"a", "b"} {
		w := newWorld(t, "10.0.0.0/24")
		dir := w.dataDir
		add := func(pool, pod string) {
			t.Helper()
			w.dataDir = dir + pool
			w.add(ask{pod: pod, container: "c-" + pod, window: hour})
		}
		add("a", "db-0")
		add("b", "db-1")
		if err := os.Truncate(w.service.Store.Dirs().State+"/leases.db", 100); err != nil {
			t.Fatal(err)
		}
		second := map[string]string{"a": "b", "b": "a"}[first]
		add(first, "db-2")
		if err := w.service.Store.Update(context.Background(), store.Options{}, func(tx *store.Tx) error {
			return tx.SetCursor(lease.Pool{DataDir: dir + second, Network: w.network}, "s",
				netip.MustParseAddr("10.0.0.9"))
		}); err != nil {
			t.Fatal(err)
		}
		if w.look().Adopted(w.network) {
			t.Errorf("%s is known, %s is not, and it says that all is", first, second)
		}
		add(second, "db-3")
		if !w.look().Adopted(w.network) {
			t.Error("all is known, and it says that it is not")
		}
	}
}
