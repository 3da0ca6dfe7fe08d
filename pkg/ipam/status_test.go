package ipam

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// tree returns all files of the world, with content and time of modification.
func (w *world) tree() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	root := filepath.Dir(w.dataDir)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, root)] = fmt.Sprintf("%s %x", info.ModTime(), b)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) status() error {
	_, err := w.timedStatus()
	return err
}

// timedStatus is STATUS of a new process. It returns for how long STATUS has waited for others: it
// runs in a synctest bubble, in which no other time passes. It ends after 20 ms, for which the
// store polls a lock; the time of a bubble stands still during a blocking flock(2).
func (w *world) timedStatus() (waited time.Duration, err error) {
	w.t.Helper()
	node, in := *w.service.Node, w.where()
	node.Store = store.New(w.service.Store.Dirs())
	in.Soft = w.options.SoftHold
	synctest.Test(w.t.(*testing.T), func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		began := time.Now()
		err = (&Service{Node: &node}).Status(ctx, in)
		waited = time.Since(began)
	})
	return waited, err
}

// statusLikeADD expects STATUS to fail, without a change of any file, if an ADD of a new pod does.
func (w *world) statusLikeADD() {
	w.t.Helper()
	before := w.tree()
	status := w.status()
	for path, content := range w.tree() {
		if former, found := before[path]; former != content && (found || !strings.HasSuffix(path, "/lock")) {
			w.t.Errorf("STATUS changed %s", path)
		}
		delete(before, path)
	}
	for path := range before {
		w.t.Errorf("STATUS removed %s", path)
	}
	_, add := w.tryAdd(ask{pod: "new", container: "new"})
	switch {
	case (status == nil) != (add == nil):
		w.t.Errorf("STATUS: %v; ADD: %v", status, add)
	case status != nil && !strings.Contains(status.Error(), add.Error()):
		w.t.Errorf("STATUS says %q, ADD says %q", status, add)
	}
}

// setFormat sets the format of the store's file.
func (w *world) setFormat(format byte) {
	w.t.Helper()
	db, err := bolt.Open(filepath.Join(w.stateDir(), "leases.db"), 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{format}) })
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestStatusIsWhatAnAddWouldAnswer(t *testing.T) {
	tests := []struct {
		name string
		harm func(*world)
		ok   bool
	}{
		{"a known pool", func(w *world) { w.keep() }, true},
		{"no store yet", func(w *world) {}, true},
		{"a store of a newer format", func(w *world) { w.keep(); w.setFormat(255) }, false},
		{"a lost store without evidence", func(w *world) { w.keep(); w.wipe(w.stateDir(), w.dataDir) }, false},
		{"a lost store, and a file of host-local's could not be written", func(w *world) {
			w.keep()
			w.oldMark()
			w.wipe(w.stateDir(), w.path("10.0.0.2"))
		}, false},
		{"a lost store, and the directory is complete", func(w *world) { w.keep(); w.wipe(w.stateDir()) }, true},
		{"a lost store, and libcni's cache names all containers", func(w *world) {
			w.add(ask{pod: "db-1", container: "c2"})
			w.cached("c2", "10.0.0.2")
			w.wipe(w.stateDir(), w.dataDir)
		}, true},
		{"a damaged store without evidence", func(w *world) {
			w.keep()
			w.wipe(w.dataDir)
			if err := os.Truncate(filepath.Join(w.stateDir(), "leases.db"), 100); err != nil {
				w.t.Fatal(err)
			}
		}, false},
		{"a lost store, after an ADD that failed", func(w *world) {
			w.keep()
			w.wipe(w.stateDir(), w.dataDir)
			w.refused(ask{container: "x"}, transact.ErrNoEvidence)
		}, false},
		{"a loss that was accepted", func(w *world) {
			w.keep()
			w.wipe(w.stateDir(), w.dataDir)
			if err := w.service.AcceptLoss(context.Background()); err != nil {
				w.t.Fatal(err)
			}
		}, true},
		{"a directory of host-local's that cannot be read", func(w *world) {
			w.keep()
			w.wipe(w.dataDir)
			if err := os.Symlink(w.dataDir, w.dataDir); err != nil {
				w.t.Fatal(err)
			}
		}, false},
		{"namespaces that cannot be listed", func(w *world) { w.unlisted = true }, false},
		{"namespaces that cannot be listed, of a known pool", func(w *world) { w.keep(); w.unlisted = true }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24")
			tt.harm(w)
			w.statusLikeADD()
			if err := w.status(); (err == nil) != tt.ok {
				t.Errorf("STATUS: %v", err)
			}
			w.setFormatBack()
		})
	}
}

// setFormatBack makes the store readable for the checks at the end of the test.
func (w *world) setFormatBack() {
	if _, err := os.Stat(filepath.Join(w.stateDir(), "leases.db")); err == nil {
		w.setFormat(1)
	}
}

// TestStatusOfABusyStore verifies that STATUS waits for no call, and that a busy store is no
// failure.
func TestStatusOfABusyStore(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "c1"})
	var waited time.Duration
	err := w.service.Store.Update(t.Context(), func(*store.Tx) (err error) {
		waited, err = w.timedStatus()
		return err
	})
	if err != nil || waited > 0 {
		t.Errorf("STATUS while another call has the lock: %v, waited for %s", err, waited)
	}
}
