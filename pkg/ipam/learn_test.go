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

// cached writes libcni's entry of a container, of a pod with an annotation if they are given.
func (w *world) cached(container, addr string, pod ...string) {
	w.t.Helper()
	w.service.CacheDirs = []string{filepath.Dir(w.cacheFile(container))}
	args := ""
	if len(pod) > 0 {
		args = fmt.Sprintf(`"cniArgs":[["K8S_POD_NAMESPACE","db"],["K8S_POD_NAME",%q],["K8S_POD_UID","uid-of-%s"]],`,
			pod[0], container)
	}
	if len(pod) > 1 {
		args += fmt.Sprintf(`"capabilityArgs":{"io.kubernetes.cri.pod-annotations":`+
			`{"io.kubernetes.cri/reserved-ip-duration":%q}},`, pod[1])
	}
	entry := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":%q,%s
		"netns":"/run/netns/%s","result":{"ips":[{"address":"%s/24"}]}}`, container, w.network, args, container, addr)
	w.must(os.MkdirAll(filepath.Dir(w.cacheFile(container)), 0o755))
	w.must(os.WriteFile(w.cacheFile(container), []byte(entry), 0o600))
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
