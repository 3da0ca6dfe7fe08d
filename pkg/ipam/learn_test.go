package ipam

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
)

func (w *world) snapshot() {
	w.t.Helper()
	if err := w.service.Store.WriteSnapshot(context.Background(), w.now); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) storeFile() string { return filepath.Join(w.stateDir(), "leases.db") }

// The agent takes a snapshot and stops; pods end. The store knows that, and a wiped directory does
// not make it less known.
func TestAnOldSnapshotBringsNothingBackIntoAStoreThatKnows(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "plain"})
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", window: hour})
	w.snapshot()
	w.del("plain")
	w.stop("c1")
	w.stop("c2")
	w.after(2 * hour)
	w.add(ask{pod: "x", container: "c3"})
	w.same("before", w.leases(), "10.0.0.5=x/Bound")
	w.wipe(w.dataDir)
	w.add(ask{pod: "y", container: "c4"})
	w.same("after", w.leases(), "10.0.0.5=x/Bound 10.0.0.6=y/Bound")
}

// The mount of a living container's namespace is gone, so the quick look does not show its life. The
// lease of the container before it must not take its place: its late DEL would free the address.
func TestAnOldSnapshotReplacesNoLeaseOfAStoreThatKnows(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{container: "old"})
	w.snapshot()
	w.stop("old")
	w.add(ask{container: "lives"})
	w.inPID[w.netns["/run/netns/lives"]] = true
	w.burn("lives")
	w.wipe(w.dataDir)
	w.refused(ask{pod: "x", container: "c3"}, ErrExhausted)
	w.del("old")
	w.refused(ask{pod: "x", container: "c4"}, ErrExhausted)
	w.del("lives")
	w.same("after its own DEL", w.add(ask{pod: "x", container: "c5"}), "10.0.0.2")
}

// A damaged record is repaired from the snapshot, and nothing else comes back with it.
func TestTheSnapshotRepairsDamagedRecordsAlone(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.options.Mirror = false
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{container: "plain"})
	w.snapshot()
	w.del("plain")
	spoilRecord(t, w.storeFile(), "db-0")
	w.burn("c1")
	w.same("known from the snapshot", w.add(ask{pod: "db-0", container: "c2", window: hour}), "10.0.0.2")
	w.same("and nothing else", w.leases(), "10.0.0.2=db-0/Bound")
}

// The journal says who got the address after the snapshot was taken.
func TestTheSnapshotOfADamagedRecordMayBeOutOfDate(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.options.Mirror = false
	w.add(ask{container: "former"})
	w.snapshot()
	w.stop("former")
	w.add(ask{pod: "db-0", container: "latter", window: hour})
	spoilRecord(t, w.storeFile(), "db-0")
	w.refused(ask{pod: "x", container: "c3"}, ErrExhausted)
	w.same("repaired, for nobody known", w.leases(), "10.0.0.2=/Bound")
	w.del("former")
	w.refused(ask{pod: "x", container: "c4"}, ErrExhausted)
}

// A damaged head page may hide one transaction. It makes the store no less known than that.
func TestAnOldSnapshotIsNotAskedForTheLastTransaction(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "plain"})
	w.snapshot()
	w.del("plain")
	w.add(ask{container: "c2"})
	w.add(ask{container: "c3"})
	spoilNewestHead(t, w.storeFile()) // the ADD of c3 is gone
	w.add(ask{pod: "x", container: "c4"})
	w.same("leases", w.leases(), "10.0.0.3=/Bound 10.0.0.4=/Bound 10.0.0.5=x/Bound")
}

// unreadable puts something in the place of an address's file that cannot be read.
func (w *world) unreadable(addr string) {
	w.t.Helper()
	w.wipe(w.path(addr))
	if err := errors.Join(os.MkdirAll(filepath.Dir(w.path(addr)), 0o755), os.Symlink(addr, w.path(addr))); err != nil {
		w.t.Fatal(err)
	}
}

// stillUnreadable reports that the file was not touched.
func (w *world) stillUnreadable(addr string) {
	w.t.Helper()
	if _, err := os.Stat(w.path(addr)); !errors.Is(err, syscall.ELOOP) {
		w.t.Errorf("the file of %s was touched: %v", addr, err)
	}
}

func TestAnAddressWhoseFileCannotBeReadIsInUse(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.add(ask{container: "first"})
	w.unreadable("10.0.0.3")
	w.same("passed over", w.add(ask{container: "c1"}), "10.0.0.4")
	w.refused(ask{container: "c2"}, ErrExhausted, "3 bound")
	w.refused(ask{container: "c2", requested: "10.0.0.3"}, ErrTaken)
	w.stillUnreadable("10.0.0.3")
	w.wipe(w.path("10.0.0.3"))
	w.hostLocal("10.0.0.3", "theirs") // as it turns out
	w.del("theirs")
	w.same("their DEL ends it", w.add(ask{container: "c2"}), "10.0.0.3")
}

// Whose an address is that our store has a lease of is not known either while its file cannot be
// read: host-local may have given it away. Nothing is done to the file, and nobody gets the address.
func TestALeaseWhoseFileCannotBeReadIsGivenToNobody(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.5")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "web", container: "c2"})
	w.add(ask{container: "plain"})
	w.unreadable("10.0.0.2")
	w.stop("c1")
	w.same("the window begins", w.leases(), "10.0.0.2=db-0/Firm 10.0.0.3=web/Bound 10.0.0.4=/Bound")
	w.stop("c2")
	w.unreadable("10.0.0.3")
	w.unreadable("10.0.0.4")
	w.stop("plain")
	w.refused(ask{pod: "x", container: "c3", requested: "10.0.0.3"}, ErrTaken)
	w.same("another address", w.add(ask{pod: "db-0", container: "c4", window: hour}), "10.0.0.5")
	w.refused(ask{pod: "x", container: "c5"}, ErrExhausted)
	for _, addr := range []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		w.stillUnreadable(addr)
	}
	w.reboot()
	w.after(hour)
	w.wipe(w.path("10.0.0.2"), w.path("10.0.0.3"), w.path("10.0.0.4"))
	for _, c := range []string{"d1", "d2", "d3"} {
		w.add(ask{container: c})
	}
}

// A hold of a requested address gives way, but not where host-local has given the address away.
func TestARequestedHoldThatHostLocalGaveAway(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "web", container: "c1"})
	w.stop("c1")
	w.wipe(w.path("10.0.0.2"))
	w.hostLocal("10.0.0.2", "theirs")
	w.refused(ask{pod: "x", container: "c2", requested: "10.0.0.2"}, ErrTaken)
	w.del("theirs")
	w.same("after their DEL", w.add(ask{pod: "x", container: "c2", requested: "10.0.0.2"}), "10.0.0.2")
}

// host-local's lock file cannot be opened (a disk that became read-only, for example): its files cannot
// be kept, and still say which addresses are in use.
func TestWithoutHostLocalsLockItsFilesAreReadAllTheSame(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.hostLocal("10.0.0.3", "theirs")
	w.wipe(w.path("lock"))
	if err := os.Mkdir(w.path("lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.same("passed over", w.add(ask{container: "c2"}), "10.0.0.4")
	w.stop("c1")
	w.same("nothing is written", w.files(), "10.0.0.2=c1 10.0.0.3=theirs")
	w.same("the hold is claimed", w.add(ask{pod: "db-0", container: "c3", window: hour}), "10.0.0.2")
	w.wipe(w.path("lock"))
	w.add(ask{container: "c4"})
	w.wipe(w.dataDir)
	if err := os.Symlink("networks", w.dataDir); err != nil { // leads nowhere, for ever
		t.Fatal(err)
	}
	w.refused(ask{container: "c5"}, adopt.ErrBlind)
	w.del("c4")
	w.options.Mirror = false
	w.same("unless it is turned off", w.add(ask{container: "c5"}), "10.0.0.6")
}
