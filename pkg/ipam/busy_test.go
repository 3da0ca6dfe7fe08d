package ipam

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
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
