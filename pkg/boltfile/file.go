// Package boltfile opens, creates and examines bbolt files that may be damaged or replaced. bbolt
// panics on damaged files, and initializes an empty one.
package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// ErrDamaged is returned for a file that bbolt must not open.
var ErrDamaged = errors.New("the file is damaged")

const (
	// PageSize is the size of the pages of the file in bytes.
	PageSize    = 4096
	preallocate = 4 << 20 // so that a release can be recorded on a full disk

	// maxSize is far above the size of any store: a lease needs about 600 bytes, with its index
	// entries. A damaged page could make bbolt extend the file without limit.
	maxSize = 1 << 30
)

// Examine opens the file and checks that bbolt may open it. It returns ErrDamaged if not, and
// fs.ErrNotExist if there is no file.
func Examine(path string, write bool) (*os.File, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := files.Open(path, flag)
	if err != nil {
		return nil, err
	}
	if err := examine(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// examine returns ErrDamaged if the size or the meta pages of the file show that it is damaged. The
// meta pages are read before bbolt maps the file, because it initializes an empty file.
//
// If one of the two meta pages is damaged, bbolt goes back to the transaction before. Then the
// address files are those of the lost one, and each address is compared with its file when it is
// used (docs/design.md, "Address files").
func examine(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.Name())
	}
	if size := info.Size(); size < 4*PageSize || size > maxSize {
		return fmt.Errorf("%w: it has %d bytes", ErrDamaged, size)
	}
	head := make([]byte, 2*PageSize)
	if _, err := f.ReadAt(head, 0); err != nil {
		return err
	}
	if _, err := newestMeta(head, info.Size()); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// newestMeta returns the newer of the meta pages that are not damaged. It returns an error if both
// are, or if the file has fewer bytes (size) than it says.
func newestMeta(head []byte, size int64) (best meta, err error) {
	found := false
	for i := range 2 {
		if m, ok := parseMeta(head[i*PageSize:][:PageSize]); ok && (!found || m.tx > best.tx) {
			best, found = m, true
		}
	}
	if !found {
		return best, errors.New("both meta pages are damaged")
	}
	if best.pages*PageSize > uint64(size) {
		return best, fmt.Errorf("truncated to %d of %d bytes", size, best.pages*PageSize)
	}
	return best, nil
}

// meta is the part of bbolt's meta page that is examined.
type meta struct {
	root     uint64 // page of the root bucket
	freelist uint64 // page of the freelist
	pages    uint64 // number of pages in use
	tx       uint64
}

func parseMeta(page []byte) (meta, bool) {
	const (
		header      = 16
		magic       = 0xED0CDAED
		sumAt       = header + 56
		metaVersion = 2
	)
	le := binary.LittleEndian
	sum := fnv.New64a()
	sum.Write(page[header:sumAt])
	ok := le.Uint32(page[header:]) == magic &&
		le.Uint32(page[header+4:]) == metaVersion &&
		le.Uint32(page[header+8:]) == PageSize &&
		le.Uint64(page[sumAt:]) == sum.Sum64()
	return meta{
		root: le.Uint64(page[header+16:]), freelist: le.Uint64(page[header+32:]),
		pages: le.Uint64(page[header+40:]), tx: le.Uint64(page[header+48:]),
	}, ok
}

// Open opens a file that was examined, which the DB closes. It waits for bbolt's own lock.
func Open(f *os.File, readOnly bool, wait time.Duration) (*bolt.DB, error) {
	return bolt.Open(f.Name(), 0o600, &bolt.Options{
		ReadOnly:        readOnly,
		PreLoadFreelist: !readOnly,
		NoStatistics:    true,
		MaxSize:         maxSize,
		Timeout:         wait,
		OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
}

// Abandon unlocks and closes a file that made bbolt panic. A read transaction is ended, so that its
// mapping does not remain in a process that reads the file again. In a write transaction Close
// would block if the DB still holds its mutexes; but an Update replaces a damaged file.
func Abandon(f *os.File, b *bolt.Tx) {
	if b != nil && !b.Writable() {
		db := b.DB()
		_ = b.Rollback()
		_ = db.Close()
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	f.Close()
}

// Create creates a file with what fn writes. It writes and syncs another file and renames it, so
// that a crash leaves no incomplete one.
func Create(path string, fn func(*bolt.Tx) error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	err := initialise(tmp, fn)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = files.SyncDir(dir)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("creating it: %w", err)
	}
	return nil
}

func initialise(path string, fn func(*bolt.Tx) error) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: PageSize, NoSync: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(fn)
	if e := db.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	reserve(f)
	return f.Sync()
}

// reserve extends the file to preallocate bytes and writes zeros: fdatasync is faster if blocks are
// overwritten than if allocated blocks are written for the first time. Errors are ignored.
func reserve(f *os.File) {
	info, err := f.Stat()
	if err != nil || syscall.Fallocate(int(f.Fd()), 0, 0, preallocate) != nil {
		return
	}
	zeros := make([]byte, 1<<20)
	for at := info.Size(); at < preallocate; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), preallocate-at)], at); err != nil {
			return
		}
	}
}

// Prove verifies all pages of the file. It returns what is wrong, or nil.
func Prove(path string) error {
	f, err := Examine(path, false)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	return provePages(b)
}
