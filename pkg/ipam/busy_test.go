package ipam

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// lockFiles takes host-local's lock of a network, as a host-local that hangs does.
func (w *world) lockFiles(network string) *os.File {
	w.t.Helper()
	lock, err := store.LockFile(context.Background(), filepath.Join(w.dataDir, network, "lock"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { lock.Close() })
	return lock
}

// addIn is an ADD in a network. It fails if it waits for a lock that is not released.
func (w *world) addIn(network string, a ask) string {
	w.t.Helper()
	return w.addWith(context.Background(), network, a)
}

func (w *world) addWith(ctx context.Context, network string, a ask) string {
	w.t.Helper()
	w.network = network
	r, err := w.service.Assign(ctx, w.request(a))
	if err != nil {
		w.t.Fatalf("ADD of %s in %s: %v", a.container, network, err)
	}
	return addresses(r)
}

// twoNetworks is a node with a pod in each of two networks, db-b and db-a, and sandboxes for more.
func twoNetworks(t *testing.T) *world {
	w := newWorld(t, "10.0.0.0/24")
	for _, c := range []string{"c1", "c2", "c3", "c4"} {
		w.unpack(c)
	}
	w.network = "netb"
	w.add(ask{pod: "db-b", container: "b1", window: hour})
	w.network = "neta"
	w.add(ask{pod: "db-a", container: "a1", window: hour})
	return w
}

// A call of B that waits for host-local holds nothing that A needs.
func TestWhoWaitsForHostLocalHoldsNoLock(t *testing.T) {
	w := twoNetworks(t)
	lock := w.lockFiles("netb")
	w.network = "netb"
	r := w.request(ask{pod: "new", container: "c1"})
	waits, done := make(chan struct{}, 9), make(chan error, 1)
	go func() {
		node := *w.service.Node
		node.Store = store.New(node.Store.Dirs()) // another process
		node.Store.Timed = func(store.Timing) { waits <- struct{}{} }
		_, err := (&Service{Node: &node}).Assign(context.Background(), r)
		done <- err
	}()
	<-waits // its first transaction has ended: host-local's lock is busy
	for _, c := range []string{"c2", "c3", "c4"} {
		w.addIn("neta", ask{pod: c, container: c})
	}
	lock.Close()
	if err := <-done; err != nil {
		t.Errorf("when host-local is done: %v", err)
	}
	w.same("all", w.leases(), "10.0.0.2=db-b/Bound 10.0.0.3=new/Bound "+
		"10.0.0.2=db-a/Bound 10.0.0.3=c2/Bound 10.0.0.4=c3/Bound 10.0.0.5=c4/Bound")
}

// The collector does in A what is due, and says that B was left out.
func TestTheCollectorPassesABusyNetwork(t *testing.T) {
	w := twoNetworks(t)
	w.network = "netb"
	for _, c := range []string{"c1", "c2", "c3"} {
		w.add(ask{pod: "pod-" + c, container: c, window: hour})
		w.burn(c)
	}
	w.network = "neta"
	w.add(ask{pod: "last", container: "c4", window: hour})
	w.burn("c4")
	lock := w.lockFiles("netb")
	act := func() (maintain.ActResult, error) {
		return w.service.Act(context.Background(), maintain.Plan(w.survey()))
	}
	if did, err := act(); !errors.Is(err, store.ErrBusy) || len(did.Taken) != 1 {
		t.Errorf("%+v: %v", did, err)
	}
	w.same("A is done", w.leases(),
		"10.0.0.2=db-b/Bound 10.0.0.3=pod-c1/Bound 10.0.0.4=pod-c2/Bound 10.0.0.5=pod-c3/Bound "+
			"10.0.0.2=db-a/Bound 10.0.0.3=last/Firm")
	lock.Close()
	if did, err := act(); err != nil || len(did.Taken) != 3 {
		t.Errorf("%+v: %v", did, err)
	}
	w.same("and B", w.leases(), "10.0.0.2=db-b/Bound 10.0.0.3=pod-c1/Firm 10.0.0.4=pod-c2/Firm 10.0.0.5=pod-c3/Firm "+
		"10.0.0.2=db-a/Bound 10.0.0.3=last/Firm")
}

// A commit may be missing from a store with a damaged head page: the host is asked of each network
// when that can be.
func TestADamagedHeadPageIsReconciledWithoutABusyNetwork(t *testing.T) {
	w := twoNetworks(t)
	w.addIn("netb", ask{pod: "missing", container: "c1"})
	spoilNewestHead(t, filepath.Join(w.stateDir(), "leases.db"))
	lock := w.lockFiles("netb")
	w.same("A", w.addIn("neta", ask{pod: "x", container: "c2"}), "10.0.0.3")
	lock.Close()
	w.same("B, where an ADD is missing", w.addIn("netb", ask{pod: "y", container: "c3"}), "10.0.0.4")
}

// Otherwise the first call asks the host of all networks, and the journal says why.
func TestADamagedHeadPageIsReconciledInEachNetwork(t *testing.T) {
	w := twoNetworks(t)
	w.addIn("netb", ask{pod: "missing", container: "c1"})
	spoilNewestHead(t, filepath.Join(w.stateDir(), "leases.db"))
	w.addIn("neta", ask{pod: "x", container: "c2"})
	w.same("leases", w.leases(), "10.0.0.2=db-b/Bound 10.0.0.3=/Bound 10.0.0.2=db-a/Bound 10.0.0.3=x/Bound")
	want := "Recovered : a head page of the store was damaged; its last change may be lost"
	if got := w.journal(); !slices.Contains(got, want) {
		t.Errorf("journal %q, want %q in it", got, want)
	}
}

// Damaged records of A are repaired though those of B cannot be, and B's stay taken.
func TestARecordIsRepairedBesideABusyNetwork(t *testing.T) {
	w := twoNetworks(t)
	w.addIn("netb", ask{pod: "db-c", container: "c1", window: hour})
	path := filepath.Join(w.stateDir(), "leases.db")
	spoilRecord(t, path, "db-a")
	spoilRecord(t, path, "db-b")
	dropRecord(t, path, "db-c")
	lock := w.lockFiles("netb")
	w.burn("a1")
	w.addIn("neta", ask{pod: "x", container: "c2", requested: "10.0.0.9"})
	w.network = "neta"
	w.refused(ask{pod: "y", container: "c4", requested: "10.0.0.2"}, ErrUnavailable)
	lock.Close()
	w.same("B is taken", w.addIn("netb", ask{pod: "z", container: "c3"}), "10.0.0.4")
	w.collect()
	w.same("and repaired", w.leases(),
		"10.0.0.2=/Bound 10.0.0.3=/Bound 10.0.0.4=z/Bound 10.0.0.2=/Bound 10.0.0.9=x/Bound")
}

// An ADD of B waits for host-local, and releases what was spooled of A, whose files are not kept
// any more.
func TestWaitingForANetworkBesideOneThatIsNotMirrored(t *testing.T) {
	w := twoNetworks(t)
	if err := os.Remove(filepath.Join(w.dataDir, "neta", ".leasehold")); err != nil {
		t.Fatal(err)
	}
	if err := w.service.Store.Spool("a1", "eth0", w.service.Clock()); err != nil {
		t.Fatal(err)
	}
	lock := w.lockFiles("netb")
	w.service.Store.Timed = func(store.Timing) { lock.Close() }
	w.same("B", w.addWith(context.Background(), "netb", ask{pod: "x", container: "c1"}), "10.0.0.3")
	if l := w.leaseOf("db-a"); l.State != lease.Held {
		t.Errorf("not replayed: %+v", l)
	}
}

// Two DELs of network B are spooled: where the first has to wait for host-local, so has the second.
func TestSpooledReleasesOfABusyNetworkAllWait(t *testing.T) {
	w := twoNetworks(t)
	w.network = "netb"
	w.add(ask{pod: "db-c", container: "c1", window: hour})
	for _, c := range []string{"b1", "c1"} {
		if err := w.service.Store.Spool(c, "eth0", w.service.Clock()); err != nil {
			t.Fatal(err)
		}
	}
	w.lockFiles("netb")
	w.same("A", w.addIn("neta", ask{pod: "x", container: "c2"}), "10.0.0.3")
	w.same("their files could not be changed", w.recorded(), "db-b=Bound db-c=Bound db-a=Bound x=Bound")
	if len(w.warned) != 1 || !strings.Contains(w.warned[0], "the DEL of container b1 has to wait, and 1 more: ") {
		t.Errorf("warnings %q, want one", w.warned)
	}
}

// countedPause counts the times that it is asked to wait.
type countedPause int

func (p *countedPause) Wait(context.Context) bool { *p++; return true }
func (p *countedPause) Over() bool                { return true }

// A call that has waited for host-local's lock does not wait for processor time with it.
func TestNoPauseWithHostLocalsLock(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.unpack("c2")
	r := w.request(ask{pod: "db-1", container: "c2"})
	lock := w.lockFiles(w.network)
	pause, attempts := countedPause(0), 0
	w.service.Store.Pause = &pause
	w.service.Store.Timed = func(store.Timing) {
		attempts++
		lock.Close()
	}
	if _, err := w.service.Assign(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	if pause != 1 || attempts != 2 {
		t.Errorf("waited %d times in %d transactions, want once in two", pause, attempts)
	}
}

// A pod that is back in time, while its old sandbox still has the address on an interface, waits
// for its address as long as for that of a bound lease: its hold does not end meanwhile.
func TestAHoldDoesNotEndWhileItsPodIsRefused(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: time.Minute})
	w.addrs["/run/netns/c1"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	w.del("c1")
	w.after(50 * time.Second)
	w.refused(ask{pod: "db-0", container: "c2", window: time.Minute}, ErrAddressInUse)
	w.after(30 * time.Second)
	w.same("another pod", w.add(ask{pod: "x", container: "x"}), "10.0.0.3")
	delete(w.addrs, "/run/netns/c1")
	w.burn("c1")
	w.same("the pod", w.add(ask{pod: "db-0", container: "c2", window: time.Minute}), "10.0.0.2")
}

// A full pool lists host-local's directory at most every five seconds, however many pods are
// refused.
func TestAFullPoolListsItsDirectoryNowAndThen(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{container: "c1"})
	w.add(ask{container: "c2"})
	w.refused(ask{container: "x"}, ErrExhausted)
	w.burn("c1")
	w.wipe(w.path("10.0.0.2")) // by a DEL that host-local has served
	w.after(lookEvery - time.Second)
	w.refused(ask{container: "x"}, ErrExhausted)
	w.after(time.Second)
	w.same("given", w.add(ask{container: "x"}), "10.0.0.2")
}
