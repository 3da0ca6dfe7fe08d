package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

func (w *world) storeFile() string { return filepath.Join(w.stateDir(), "leases.db") }

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
	w.refused(ask{container: "c2", requested: "10.0.0.3"}, ErrUnavailable)
	w.stillUnreadable("10.0.0.3")
	w.wipe(w.path("10.0.0.3"))
	w.hostLocal("10.0.0.3", "theirs") // as it turns out
	w.del("theirs")
	w.same("their DEL ends it", w.add(ask{container: "c2"}), "10.0.0.3")
}

// Whose an address is that our store has a lease of is not known either while its file cannot be
// read: host-local may have given it away. Nothing is done to the file, and nobody gets the
// address.
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
	w.refused(ask{pod: "x", container: "c3", requested: "10.0.0.3"}, ErrUnavailable)
	w.refused(ask{pod: "db-0", container: "c4", window: hour}, adopt.ErrUnreadable, "10.0.0.2")
	w.same("a pod to which nothing is promised", w.add(ask{pod: "web", uid: "uid-of-c2", container: "c5"}), "10.0.0.5")
	w.refused(ask{pod: "x", container: "c6"}, ErrExhausted)
	for _, addr := range []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		w.stillUnreadable(addr)
	}
	w.wipe(w.path("10.0.0.2"))
	w.same("once it can be read", w.add(ask{pod: "db-0", container: "c7", window: hour}), "10.0.0.2")
	w.reboot()
	w.after(hour)
	w.wipe(w.path("10.0.0.3"), w.path("10.0.0.4"))
	for _, c := range []string{"d1", "d2"} {
		w.add(ask{container: c})
	}
}

// A repeated ADD is answered from the store, whether or not the file of the address can be read.
func TestARepeatedAddWhoseFileCannotBeRead(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	pod := ask{pod: "db-0", container: "c1", window: hour}
	w.add(pod)
	w.unreadable("10.0.0.2")
	w.same("again", w.add(pod), "10.0.0.2")
	w.stillUnreadable("10.0.0.2")
}

// A hold of a requested address gives way, but not where host-local has given the address away.
func TestARequestedHoldThatHostLocalGaveAway(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "web", container: "c1"})
	w.stop("c1")
	w.wipe(w.path("10.0.0.2"))
	w.hostLocal("10.0.0.2", "theirs")
	w.refused(ask{pod: "x", container: "c2", requested: "10.0.0.2"}, ErrUnavailable)
	w.del("theirs")
	w.same("after their DEL", w.add(ask{pod: "x", container: "c2", requested: "10.0.0.2"}), "10.0.0.2")
}

// host-local's lock file cannot be opened (a disk that became read-only, for example): no address
// is given, also not one that the pod had before, and a DEL takes effect all the same.
func TestNoAddressWithoutHostLocalsLock(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	status := func() error { return w.service.Status(context.Background(), w.where()) }
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{container: "c2"})
	w.hostLocal("10.0.0.4", "theirs")
	w.wipe(w.path("lock"))
	if err := os.Mkdir(w.path("lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.refused(ask{container: "c3"}, adopt.ErrUnreadable, "lock", "is a directory")
	if err := status(); !errors.Is(err, ErrNotReady) || !errors.Is(err, adopt.ErrUnreadable) {
		t.Errorf("STATUS: %v", err)
	}
	w.stop("c1")
	w.same("nothing is written", w.files(), "10.0.0.2=c1 10.0.0.3=c2 10.0.0.4=theirs")
	w.refused(ask{pod: "db-0", container: "c3", window: hour}, adopt.ErrUnreadable)
	w.wipe(w.path("lock"))
	if err := status(); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	w.same("the hold is claimed", w.add(ask{pod: "db-0", container: "c3", window: hour}), "10.0.0.2")
	w.same("passed over", w.add(ask{container: "c4"}), "10.0.0.5")
	w.wipe(w.dataDir)
	if err := os.Symlink("networks", w.dataDir); err != nil { // leads nowhere, forever
		t.Fatal(err)
	}
	w.refused(ask{container: "c5"}, adopt.ErrUnreadable)
	w.del("c4")
}

// keep makes what a lost store must not give away: a hold, and a living pod whose address nobody
// sees.
func (w *world) keep() {
	w.t.Helper()
	w.same("a pod that is away", w.add(ask{pod: "db-0", container: "c1", window: 24 * hour}), "10.0.0.2")
	w.same("a pod whose address is in no namespace", w.add(ask{pod: "db-1", container: "c2"}), "10.0.0.3")
	w.same("another one", w.add(ask{pod: "db-2", container: "c3"}), "10.0.0.4")
	w.stop("c1")
}

// givesNothingAway loses the store and expects that no address is assigned before an operator
// accepts the loss.
func (w *world) givesNothingAway(what string) {
	w.t.Helper()
	w.wipe(w.stateDir())
	for _, c := range []string{"x1", "x2", "x3"} {
		if r, err := w.tryAdd(ask{pod: "x", container: c}); !errors.Is(err, transact.ErrNoEvidence) {
			w.t.Errorf("%s: got %s %v, want %v", what, addresses(r), err, transact.ErrNoEvidence)
		}
	}
}

// cached writes libcni's entry of a container.
func (w *world) cached(container, addr string) {
	w.t.Helper()
	dir := filepath.Join(filepath.Dir(w.dataDir), "results")
	w.service.CacheDirs = []string{dir}
	entry := fmt.Sprintf(`{"kind":"cniCacheV1",`+
		`"containerId":%q,"ifName":"eth0","networkName":%q,"netns":"/run/netns/%s",
		"result":{"ips":[{"address":"%s/24"}]}}`, container, w.network, container, addr)
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, w.network+"-"+container+"-eth0"),
		[]byte(entry), 0o600))
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestADirectoryProvesThatItIsWhole(t *testing.T) {
	remove := func(w *world, names ...string) {
		for _, name := range names {
			w.wipe(w.path(name))
		}
	}
	for what, harm := range map[string]func(w *world){
		"nothing but the dot files is left": func(w *world) { remove(w, "10.0.0.2", "10.0.0.3", "10.0.0.4", "lock") },
		"a file could not be written": func(w *world) {
			w.unreadable("10.0.0.3")
			w.stop("c2")
		},
		"an older version marked it": func(w *world) {
			remove(w, "10.0.0.2")
			w.oldMark()
		},
		"its lock cannot be had": func(w *world) {
			remove(w, "lock")
			if err := os.Mkdir(w.path("lock"), 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24")
			w.keep()
			harm(w)
			w.givesNothingAway(what)
		})
	}
}

// What host-local does in between makes a directory no less whole, and what was not written is made
// good.
func TestADirectoryIsWhole(t *testing.T) {
	for what, change := range map[string]func(w *world){
		"nothing happened":           func(*world) {},
		"host-local gave an address": func(w *world) { w.hostLocal("10.0.0.9", "theirs") },
		"an address came back":       func(w *world) { w.add(ask{container: "late"}); w.del("late") },
		"an older version marked it": func(w *world) {
			w.oldMark()
			w.add(ask{container: "late"})
			w.del("late")
		},
		"an older one, and one was removed": func(w *world) {
			w.wipe(w.path("10.0.0.2"))
			w.oldMark()
			w.add(ask{container: "late"})
			w.del("late")
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24")
			w.keep()
			change(w)
			w.wipe(w.stateDir())
			w.same("a new one", w.add(ask{container: "x", requested: "10.0.0.7"}), "10.0.0.7")
			w.same("the hold", w.add(ask{pod: "db-0", container: "c4", window: hour}), "10.0.0.2")
			w.refused(ask{pod: "y", container: "c5", requested: "10.0.0.3"}, ErrUnavailable)
		})
	}
}

// oldMark is the mark that the first versions wrote: it never changed, whatever happened to the
// files.
func (w *world) oldMark() {
	w.t.Helper()
	if err := os.WriteFile(w.path(".leasehold"), []byte("every lease of this pool has its file here\n"),
		0o600); err != nil {
		w.t.Fatal(err)
	}
}

// Nothing but the mark is left. That is a wiped directory, and not one in which host-local has
// served every DEL.
func TestAMarkThatWasLeftBehind(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "c1", netns: "/dummy"})
	w.add(ask{pod: "db-0", container: "c2", window: hour})
	w.stop("c2")
	w.wipe(w.path("10.0.0.2"), w.path("10.0.0.3"), w.path("lock"))
	w.collect()
	w.add(ask{container: "c3"})
	w.same("files", w.files(), "10.0.0.2=c1 10.0.0.3=#held:db/db-0:firm 10.0.0.4=c3")
}

// A DEL that knows no ranges cannot tell whether what is found is all.
func TestADelAfterALossProvesNothing(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "seen"})
	w.add(ask{container: "hidden"})
	w.add(ask{container: "known"})
	w.addrs["/run/netns/seen"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	w.cached("known", "10.0.0.4")
	w.wipe(w.stateDir(), w.dataDir)
	w.refused(ask{container: "c4"}, transact.ErrNoEvidence)
	if err := w.service.Release(context.Background(), on("known", "eth0"),
		PoolHint{Pool: w.where().Pool}); err != nil {
		t.Fatal(err)
	}
	w.refused(ask{container: "c4"}, transact.ErrNoEvidence)
}

// Files in a directory that is not whole name containers, and prove nothing of the others.
func TestLibcnisCacheHasToNameWhatLives(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "c1"})
	w.add(ask{container: "c2"})
	w.add(ask{container: "c3"})
	w.cached("c1", "10.0.0.2")
	w.oldMark()
	w.wipe(w.path("10.0.0.3"), w.stateDir())
	w.refused(ask{container: "x"}, transact.ErrNoEvidence)
	w.cached("c2", "10.0.0.3")
	w.refused(ask{container: "x"}, transact.ErrNoEvidence) // for c3 has a file and no entry
	torn := filepath.Join(w.service.CacheDirs[0], w.network+"-c3-eth0")
	w.cached("c3", "10.0.0.4")
	entry, err := os.ReadFile(torn)
	if err = errors.Join(err, os.WriteFile(torn, entry[:20], 0o600), os.Remove(w.path("10.0.0.4"))); err != nil {
		t.Fatal(err)
	}
	w.refused(ask{container: "x"}, transact.ErrNoEvidence)
	w.cached("c3", "10.0.0.4")
	w.same("all are named", w.add(ask{container: "x"}), "10.0.0.5")
}

// libcni's entry of a container whose DEL host-local has served is left. The address is another
// container's by now, as its newer file says; the late DEL of the first one does not free it.
func TestAnOldCacheEntryTakesNoLivingAddress(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.cached("gone", "10.0.0.2")
	entry, before := filepath.Join(w.service.CacheDirs[0], "cbr0-gone-eth0"), time.Now().Add(-time.Hour)
	if err := os.Chtimes(entry, before, before); err != nil {
		t.Fatal(err)
	}
	w.hostLocal("10.0.0.2", "lives")
	w.unpack("lives")
	w.addrs["/run/netns/lives"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	w.refused(ask{container: "x"}, ErrExhausted)
	w.del("gone")
	w.refused(ask{container: "x"}, ErrExhausted)
	w.del("lives")
	delete(w.addrs, "/run/netns/lives")
	w.burn("lives")
	w.same("after its own DEL", w.add(ask{container: "x"}), "10.0.0.2")
}

// bringBack puts an old file in the place of an address's, as a power cut does: these files are
// never synced.
func (w *world) bringBack(addr, content string, written time.Time) {
	w.t.Helper()
	w.wipe(w.path(addr))
	if err := errors.Join(os.WriteFile(w.path(addr), []byte(content), 0o600),
		os.Chtimes(w.path(addr), written, written)); err != nil {
		w.t.Fatal(err)
	}
}

// The clock is wrong after the boot, and host-local has given the address to a container that
// lives: libcni's entry shows that its file is not an old one.
func TestAFileOfALivingContainerIsNotAnOldOne(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	w.forget()
	w.reboot()
	w.bringBack("10.0.0.2", "theirs\r\neth0", time.Unix(60, 0))
	w.unpack("theirs")
	w.cached("theirs", "10.0.0.2")
	w.same("another address", w.add(ask{pod: "db-0", container: "c2", window: hour}), "10.0.0.3")
}

// The directory's mark is gone as well, so that all is read again.
func TestAnOldFileWithoutALeaseIsNotAdopted(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{container: "c1"})
	t0 := w.now.Wall
	w.after(time.Minute)
	w.stop("c1")
	w.bringBack("10.0.0.2", "c1\r\neth0", t0)
	w.wipe(w.path(".leasehold"))
	w.reboot()
	w.same("free", w.add(ask{container: "c2"}), "10.0.0.2")
}

// forget fills the journal, so that it knows nothing of what was before.
func (w *world) forget() {
	w.t.Helper()
	err := w.service.Store.Update(context.Background(), store.Options{}, func(tx *store.Tx) error {
		for range store.JournalSize + 100 {
			if err := tx.Log(store.Entry{Time: w.now.Wall, Event: store.EventRefused}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// The store is lost while a pod's sandbox lives on after its DEL: who has the address is not known
// then, and what is promised to the pod is. It stays promised when the namespace has ended and
// host-local's directory is wiped.
func TestTheHoldOfAnUnknownContainerOutlivesItsFile(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	if err := w.service.Release(t.Context(), on("c1", "eth0"), w.where()); err != nil {
		t.Fatal(err)
	}
	w.wipe(w.storeFile())
	w.addrs["/run/netns/c1"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	w.refused(ask{pod: "web-0", container: "c2"}, ErrExhausted)
	w.same("when the store was lost", w.leases(), "10.0.0.2=db-0/Bound")
	w.burn("c1")
	w.wipe(filepath.Join(w.dataDir, w.network))
	w.refused(ask{pod: "web-0", container: "c2"}, ErrExhausted)
	w.same("the pod", w.add(ask{pod: "db-0", container: "c3", window: hour}), "10.0.0.2")
}

// What another namespace shows does not replace the lease of a container that lives, unless
// host-local has given the address away.
func TestTheAddressOfALivingContainerInAnotherNamespace(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.unpack("other")
	w.addrs["/run/netns/other"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	w.wipe(filepath.Join(w.dataDir, w.network))
	w.add(ask{pod: "web-0", container: "c2"})
	w.same("all", w.leases(), "10.0.0.2=db-0/Bound 10.0.0.3=web-0/Bound")
	if l := w.leaseOf("db-0"); l.Holder.ContainerID != "c1" || l.Holder.Netns.Path != "/run/netns/c1" {
		t.Errorf("%+v", l)
	}
}

// A file alone takes no address from a living container, even if its interface does not have the
// address, as with gVisor.
func TestAFileOfAContainerThatIsGoneTakesNothing(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	delete(w.plugged, "/run/netns/c1")
	w.after(time.Minute)
	w.bringBack("10.0.0.2", "gone\r\neth0", w.now.Wall)
	w.wipe(w.path(".leasehold"))
	w.same("the next address", w.add(ask{container: "c2"}), "10.0.0.3")
	w.same("both", w.leases(), "10.0.0.2=db-0/Bound 10.0.0.3=/Bound")
}

// Somebody has removed the file of a living pod's address, and host-local has given the address to
// another container: that one has it from now on.
func TestAnAddressThatHostLocalGaveToAnother(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.after(time.Minute)
	w.bringBack("10.0.0.2", "theirs\r\neth0", w.now.Wall)
	w.wipe(w.path(".leasehold"))
	w.unpack("theirs")
	w.cached("theirs", "10.0.0.2")
	w.same("the next address", w.add(ask{container: "c2"}), "10.0.0.3")
	w.same("both", w.leases(), "10.0.0.2=/Bound 10.0.0.3=/Bound")
}

// TestAMovedDirectoryKeepsItsAddresses verifies that what the journal has about a network of the
// same name in another directory says nothing of the files of this one.
func TestAMovedDirectoryKeepsItsAddresses(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{container: "c1", netns: "/dummy"}) // on no interface, as with gVisor
	before := w.now.Wall.Add(-time.Minute)
	if err := os.Chtimes(w.path("10.0.0.2"), before, before); err != nil {
		t.Fatal(err)
	}
	moved := w.dataDir + "-moved"
	if err := os.Rename(w.dataDir, moved); err != nil {
		t.Fatal(err)
	}
	w.dataDir = moved
	w.refused(ask{pod: "x", container: "c2"}, ErrExhausted, "1 bound")
	w.same("its file", w.files(), "10.0.0.2=c1")
}
