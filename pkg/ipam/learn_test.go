package ipam

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

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

// cached writes libcni's entry of a container, of a pod if it is named.
func (w *world) cached(container, addr string, pod ...string) {
	w.t.Helper()
	w.service.CacheDirs = []string{filepath.Dir(w.cacheFile(container))}
	args := ""
	if len(pod) > 0 {
		args = fmt.Sprintf(`"cniArgs":[["K8S_POD_NAMESPACE","db"],["K8S_POD_NAME",%q],["K8S_POD_UID","uid-of-%s"]],`,
			pod[0], container)
	}
	entry := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":%q,%s
		"netns":"/run/netns/%s","result":{"ips":[{"address":"%s/24"}]}}`, container, w.network, args, container, addr)
	w.must(os.MkdirAll(filepath.Dir(w.cacheFile(container)), 0o755))
	w.must(os.WriteFile(w.cacheFile(container), []byte(entry), 0o600))
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
