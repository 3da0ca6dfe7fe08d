package ipam

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/test/must"
)

// files prints host-local's directory: "10.0.0.2=c1", a hold by its mark.
func (w *world) files() string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dataDir, w.network))
	w.must(err)
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

// file returns the content of a file, without the owner in a mark, which differs in each run.
func (w *world) file(name string) string {
	b, err := os.ReadFile(w.path(name))
	if err != nil {
		return ""
	}
	if text, _, found := strings.Cut(string(b), "\n"); found && name == ".leasehold" {
		return text + "\n"
	}
	return string(b)
}

// hostLocal does what host-local does with its files. The interface is eth0 unless the container
// has one after "\r\n".
func (w *world) hostLocal(addr, container string) {
	w.t.Helper()
	if _, err := os.Lstat(w.path(addr)); err == nil {
		w.t.Fatalf("%s has a file", addr)
	}
	if !strings.Contains(container, "\n") {
		container += "\r\neth0"
	}
	w.write(w.path(addr), container)
}

// write writes a file, and makes its directory.
func (w *world) write(path, content string) {
	w.t.Helper()
	w.must(errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)))
}

func (w *world) wipe(paths ...string) {
	w.t.Helper()
	for _, p := range paths {
		w.must(os.RemoveAll(p))
	}
}

func (w *world) stateDir() string { return w.service.Node.Store.Dirs().State }

// spoilNewestHead damages the head page with the higher transaction number.
func spoilNewestHead(t testing.TB, path string) {
	t.Helper()
	b := must.Read(t, path)
	const page, txAt = 4096, 16 + 48
	at := 0
	if string(b[page+txAt:page+txAt+1]) > string(b[txAt:txAt+1]) { // few transactions: one byte tells
		at = page
	}
	b[at+20] ^= 0xff
	must.Succeed(t, os.WriteFile(path, b, 0o600))
}

func (w *world) export() {
	w.t.Helper()
	_, err := w.service.Export(context.Background())
	w.must(err)
}

// readOnly lets a file be neither written nor removed, until writable is called or the test ends.
func (w *world) readOnly(addr string) {
	w.t.Helper()
	path := w.path(addr)
	w.must(errors.Join(unix.Mount(path, path, "", unix.MS_BIND, ""),
		unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")))
	w.t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

func (w *world) writable(addr string) {
	w.t.Helper()
	w.must(unix.Unmount(w.path(addr), unix.MNT_DETACH))
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
	must.Succeed(t, err)
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
	must.Succeed(t, err)
}

// uncommitted makes a call whose transaction is not committed, because the store's file is replaced
// meanwhile. It leaves the files that are written before a commit. A call that imports never
// ends: it reads the sources again after each transaction that is lost.
func (w *world) uncommitted(call func()) {
	store := filepath.Join(w.service.Node.Store.Dirs().State, "leases.db")
	clock := w.service.Node.Clock // is read once in each transaction
	w.service.Node.Clock = func() lease.Instant {
		content, err := os.ReadFile(store)
		must.Succeed(w.t, errors.Join(err, os.Remove(store), os.WriteFile(store, content, 0o600)))
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
			"10.0.0.2=#held:db/db-0:hold",
		},
		"a take-over": {
			func(w *world) {
				w.burn("c1")
				w.unpack("c2")
				w.service.Assign(w.t.Context(), w.request(ask{pod: "db-0", container: "c2", window: time.Hour}))
			},
			"10.0.0.2=#held:db/db-0:cool-down",
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

// TestTheFileIsTheRecordUntilTheCommit verifies that the file of a container that host-local served
// and that has ended names the container until its hold is in the store: after a kill the next call
// imports it from there. If the store has a lease of the address, that is its record, and the file
// is a hold before the commit, as in TestNoFileNamesTheFormerHolder.
func TestTheFileIsTheRecordUntilTheCommit(t *testing.T) {
	held := func(w *world) {
		w.add(ask{pod: "db-1", container: "c1", window: hour, requested: "10.0.0.5"})
		w.stop("c1")
		w.settle()
		w.wipe(w.path("10.0.0.5"))
	}
	tests := map[string]struct {
		before    func(*world)
		isDead    bool
		file      string // of the address, before the commit
		committed string // all files after it
	}{
		"no lease": {before: func(*world) {}, isDead: true, file: "10.0.0.5=c9",
			committed: "10.0.0.5=#held:db/db-0:cool-down"},
		"a hold": {before: held, file: "10.0.0.5=#held:db/db-0:cool-down",
			committed: "10.0.0.5=#held:db/db-1:hold"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/29")
			w.add(ask{pod: "x", container: "x"})
			tt.before(w)
			w.startedByHostLocal("db-0", "c9", "10.0.0.5")
			if w.stamp(); tt.isDead {
				w.burn("c9")
			}
			who, files := on("c9", "eth0"), []netip.Addr{netip.MustParseAddr("10.0.0.5")}
			del := func(attempts int) {
				_ = w.service.Node.Update(t.Context(), w.where(), func(c *operation.Call) error {
					if attempts--; attempts < 0 {
						return errors.New("the process was killed")
					}
					err := c.ImportFiles(w.where().Pool, files, operation.Names(who))
					if err == nil {
						_, _, err = c.Release(who, w.where().Pool, c.Now, "DEL")
					}
					return err
				})
			}
			w.uncommitted(func() { del(1) })
			w.same("the files before the commit", strings.TrimPrefix(w.files(), "10.0.0.2=x "), tt.file)
			del(1)
			w.same("the files after it", w.files(), "10.0.0.2=x "+tt.committed)
		})
	}
}
