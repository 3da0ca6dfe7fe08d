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
	w.must(err)
	return out
}

// timedStatus returns for how long status has waited for others: it runs in a synctest bubble, in
// which no other time passes. It ends after 20 ms, for which the store polls a lock; the time of a
// bubble stands still during a blocking flock(2).
func (w *world) timedStatus() (waited time.Duration, err error) {
	w.t.Helper()
	synctest.Test(w.t.(*testing.T), func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		began := time.Now()
		err = w.status(ctx)
		waited = time.Since(began)
	})
	return waited, err
}

// status is STATUS of a new process.
func (w *world) status(ctx context.Context) error {
	node, in := *w.service.Node, w.where()
	node.Store = store.New(w.service.Node.Store.Dirs())
	in.CoolDown = w.options.CoolDown
	return (&Service{Node: &node}).Status(ctx, in)
}

// statusLikeADD expects STATUS to fail, without a change of any file, if an ADD of a new pod does,
// and returns whether it does.
func (w *world) statusLikeADD() string {
	w.t.Helper()
	before := w.tree()
	status := w.status(w.t.Context())
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
	if status != nil {
		return "fails"
	}
	return "ready"
}

// setFormat sets the format of the store's file.
func (w *world) setFormat(format byte) {
	w.t.Helper()
	db, err := bolt.Open(filepath.Join(w.stateDir(), "leases.db"), 0o600, &bolt.Options{Timeout: time.Second})
	w.must(err)
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{format}) })
	w.must(err)
}

// TestStatusOfABusyStore verifies that STATUS waits for no call, and that a busy store is no
// failure.
func TestStatusOfABusyStore(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "c1"})
	var waited time.Duration
	err := w.service.Node.Store.Update(t.Context(), func(*store.Tx) (err error) {
		waited, err = w.timedStatus()
		return err
	})
	if err != nil || waited > 0 {
		t.Errorf("STATUS while another call has the lock: %v, waited for %s", err, waited)
	}
}
