package ipam

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// files prints host-local's directory: "10.0.0.2=c1", a hold by its mark.
func (w *world) files() string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dataDir, w.network))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() == "lock" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		id, _, _ := strings.Cut(w.file(e.Name()), "\r\n")
		if words := strings.Fields(id); len(words) > 3 {
			id = words[0] + ":" + words[1] + ":" + words[3]
		}
		out = append(out, e.Name()+"="+id)
	}
	return strings.Join(out, " ")
}

func (w *world) path(name string) string { return filepath.Join(w.dataDir, w.network, name) }

func (w *world) file(name string) string {
	b, err := os.ReadFile(w.path(name))
	if err != nil {
		return ""
	}
	return string(b)
}

// hostLocal does what host-local does with its files. The interface is eth0 unless the container
// has one after "\r\n".
func (w *world) hostLocal(addr, container string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Join(w.dataDir, w.network), 0o755); err != nil {
		w.t.Fatal(err)
	}
	f, err := os.OpenFile(w.path(addr), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	if !strings.Contains(container, "\n") {
		container += "\r\neth0"
	}
	if _, err := f.WriteString(container); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wipe(paths ...string) {
	w.t.Helper()
	for _, p := range paths {
		if err := os.RemoveAll(p); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) stateDir() string { return w.service.Store.Dirs().State }

// spoilNewestHead damages the head page with the higher transaction number.
func spoilNewestHead(t testing.TB, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const page, txAt = 4096, 16 + 48
	at := 0
	if string(b[page+txAt:page+txAt+1]) > string(b[txAt:txAt+1]) { // few transactions: one byte tells
		at = page
	}
	b[at+20] ^= 0xff
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *world) export() {
	w.t.Helper()
	if _, err := w.service.Export(context.Background(), anyPool); err != nil {
		w.t.Fatal(err)
	}
}

// A file that cannot be written or removed is reported. If one could not be written, the directory
// no longer proves that it has the files of all leases.
func TestAFileThatCannotBeWritten(t *testing.T) {
	const proves, provesNot = "0 ", "not all "
	pod := ask{pod: "db-0", container: "c1", window: hour}
	for name, c := range map[string]struct {
		before, call func(w *world)
		warnings     int
		mark         string
	}{
		"when a hold begins": {func(*world) {}, func(w *world) { w.stop("c1") }, 1, provesNot},
		"when it is claimed": {func(w *world) { w.stop("c1"); w.settle() },
			func(w *world) { w.add(ask{pod: "db-0", container: "c2", window: hour}) }, 1, provesNot},
		"when a sandbox is replaced": {func(w *world) { w.burn("c1") },
			func(w *world) { w.add(ask{pod: "db-0", container: "c2", window: hour}) }, 2, provesNot},
		"when another lease changes": {func(*world) {}, func(w *world) { w.add(ask{container: "x"}); w.stop("x") }, 0,
			proves},
		"when a hold ends": {func(w *world) { w.stop("c1"); w.add(ask{pod: "x", container: "x"}) },
			func(w *world) {
				if err := w.revokePods(t.Context(), w.leaseOf("db-0")); err != nil {
					t.Fatal(err)
				}
			}, 1, proves},
	} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(pod)
		c.before(w)
		w.warned = nil
		restore := readOnly(t, w.path("10.0.0.2"))
		c.call(w)
		restore()
		others := slices.DeleteFunc(slices.Clone(w.warned), func(s string) bool {
			return strings.HasPrefix(s, "a file for host-local cannot be kept: ") && strings.Contains(s, "10.0.0.2")
		})
		if len(w.warned) != c.warnings || len(others) > 0 {
			t.Errorf("%s: warned %q, want %d warnings about the file", name, w.warned, c.warnings)
		}
		if mark := w.file(".leasehold"); !strings.HasPrefix(mark, c.mark) {
			t.Errorf("%s: the mark is %q, want %q", name, mark, c.mark)
		}
	}
}

// readOnly lets a file be neither written nor removed, until restore is called.
func readOnly(t *testing.T, path string) (restore func()) {
	t.Helper()
	if err := errors.Join(unix.Mount(path, path, "", unix.MS_BIND, ""),
		unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// lose makes a store of one lease and destroys it.
func (w *world) lose() {
	w.t.Helper()
	w.add(ask{container: "c1"})
	if err := os.Truncate(filepath.Join(w.stateDir(), "leases.db"), 100); err != nil {
		w.t.Fatal(err)
	}
}

// spoilRecord damages the records that name the word.
func spoilRecord(t testing.TB, path, word string) {
	t.Helper()
	inRecords(t, path, word, func(b *bolt.Bucket, k, v []byte) error { return b.Put(k, append(v, 'x')) })
}

// dropRecord removes them, and leaves the indexes as they are.
func dropRecord(t testing.TB, path, word string) {
	t.Helper()
	inRecords(t, path, word, func(b *bolt.Bucket, k, _ []byte) error { return b.Delete(k) })
}

func inRecords(t testing.TB, path, word string, fn func(b *bolt.Bucket, k, v []byte) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error {
		b, found := tx.Bucket([]byte("leases")), map[string][]byte{}
		err := b.ForEach(func(k, v []byte) error {
			if bytes.Contains(v, []byte(word)) {
				found[string(k)] = bytes.Clone(v)
			}
			return nil
		})
		for k, v := range found {
			err = errors.Join(err, fn(b, []byte(k), v))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// uncommitted makes a call whose transaction is not committed, because the store's file is replaced
// meanwhile. It leaves the files that are written before a commit.
func (w *world) uncommitted(call func()) {
	store := filepath.Join(w.service.Store.Dirs().State, "leases.db")
	clock := w.service.Node.Clock // is read once in each transaction
	w.service.Node.Clock = func() lease.Instant {
		content, err := os.ReadFile(store)
		if err = errors.Join(err, os.Remove(store), os.WriteFile(store, content, 0o600)); err != nil {
			w.t.Fatal(err)
		}
		return clock()
	}
	defer func() { w.service.Node.Clock = clock }()
	call()
}

// TestNoFileNamesTheFormerHolder verifies that the file of an address names its former container no
// more before the store gives the address to another or holds it, so wherever the call is killed: a
// DEL of that container, served by host-local, would remove the file.
func TestNoFileNamesTheFormerHolder(t *testing.T) {
	tests := map[string]struct {
		call  func(*world)
		files string
	}{
		"a hold": {
			func(w *world) {
				w.service.releaseFound(w.t.Context(), on("c1", "eth0"), w.where())
			},
			"10.0.0.2=#held:db/db-0:firm",
		},
		"a take-over": {
			func(w *world) {
				w.burn("c1")
				w.unpack("c2")
				w.service.Assign(w.t.Context(), w.request(ask{pod: "db-0", container: "c2", window: time.Hour}))
			},
			"10.0.0.2=#held:db/db-0:soft",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/29")
			w.add(ask{pod: "db-0", container: "c1", window: time.Hour})
			w.uncommitted(func() { tt.call(w) })
			w.same("the files", w.files(), tt.files)
		})
	}
}
