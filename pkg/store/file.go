package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

const (
	pageSize    = 4096
	preallocate = 4 << 20 // so that a release can be recorded on a full disk

	// maxSize is far above the size of any store: a lease needs about 600 bytes, with its index
	// entries. A damaged page could make bbolt extend the file without limit.
	maxSize = 1 << 30
)

// openFile is os.OpenFile that never blocks, not even if the path leads to a FIFO.
func openFile(path string, flag int) (*os.File, error) {
	return os.OpenFile(path, flag|syscall.O_NONBLOCK, 0o600)
}

// openExamined opens the file and checks that bbolt may open it. It returns ErrLost if not, and
// fs.ErrNotExist if there is no file.
func openExamined(path string, write bool) (*os.File, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := openFile(path, flag)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIO, err)
	}
	if err := examine(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// examine returns ErrLost if the size or the meta pages of the file show that it is damaged. The
// meta pages are read before bbolt maps the file, because it initializes an empty file.
//
// If one of the two meta pages is damaged, bbolt goes back to the transaction before. Then the
// address files are those of the lost one, and each address is compared with its file when it is
// used (docs/design.md, "Address files").
func examine(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is not a regular file", ErrIO, f.Name())
	}
	if size := info.Size(); size < 4*pageSize || size > maxSize {
		return fmt.Errorf("%w: it has %d bytes", ErrLost, size)
	}
	head := make([]byte, 2*pageSize)
	if _, err := f.ReadAt(head, 0); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	if _, err := newestMeta(head, info.Size()); err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}

// newestMeta returns the newer of the meta pages that are not damaged. It returns an error if both
// are, or if the file has fewer bytes (size) than it says.
func newestMeta(head []byte, size int64) (best meta, err error) {
	found := false
	for i := range 2 {
		if m, ok := parseMeta(head[i*pageSize:][:pageSize]); ok && (!found || m.tx > best.tx) {
			best, found = m, true
		}
	}
	if !found {
		return best, errors.New("both meta pages are damaged")
	}
	if best.pages*pageSize > uint64(size) {
		return best, fmt.Errorf("truncated to %d of %d bytes", size, best.pages*pageSize)
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
		le.Uint32(page[header+8:]) == pageSize &&
		le.Uint64(page[sumAt:]) == sum.Sum64()
	return meta{
		root: le.Uint64(page[header+16:]), freelist: le.Uint64(page[header+32:]),
		pages: le.Uint64(page[header+40:]), tx: le.Uint64(page[header+48:]),
	}, ok
}

// create creates an empty store at the path. It writes and syncs another file and renames it, so
// that a crash leaves no incomplete store. lost is the reason why it replaces another store, in a
// boot; "" means that it is the first.
func create(path, lost, boot string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	err := initialise(tmp, lost, boot)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = files.SyncDir(dir)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("%w: creating it: %w", ErrIO, err)
	}
	return nil
}

func initialise(path, lost, boot string) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: pageSize, NoSync: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(func(b *bolt.Tx) error {
		var failed error
		for _, name := range allBuckets {
			_, err := b.CreateBucket(name)
			failed = errors.Join(failed, err)
		}
		meta := b.Bucket(bucketMeta)
		return errors.Join(failed, meta.Put(metaLost, []byte(lost)), meta.Put(metaLostIn, []byte(boot)),
			meta.Put(metaID, newID()), meta.Put(metaFormat, []byte{format}))
	})
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
