package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

func (s *Store) lostDir() string { return filepath.Join(s.dirs.State, "lost") }

// replace moves a lost store to the directory lost, and creates an empty store that contains the
// reason (Tx.Lost). The caller holds the lock.
func (s *Store) replace(why error) error {
	if err := s.setAside(); err != nil {
		return fmt.Errorf("%w: moving the lost store: %w", ErrIO, err)
	}
	if err := create(s.path(), why.Error()); err != nil {
		return err
	}
	return s.setMark()
}

func (s *Store) setAside() error {
	if _, err := os.Lstat(s.path()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(s.lostDir(), 0o700); err != nil {
		return err
	}
	name := filepath.Join(s.lostDir(), "leases.db."+time.Now().UTC().Format("20060102T150405.000000000Z"))
	if err := os.Rename(s.path(), name); err != nil {
		return err
	}
	return files.SyncDir(s.lostDir())
}

// panicked returns the error for a panic during a transaction: ErrLost if the file is damaged,
// otherwise ErrIO, because the panic is a bug. open is false if bbolt panicked while it opened the
// file, so that the list of free pages is damaged.
func panicked(path string, open bool, p any) error {
	if !open {
		return fmt.Errorf("%w: opening it failed (%.200v)", ErrLost, p)
	}
	if found := prove(path); found != "" {
		return fmt.Errorf("%w: reading it failed (%.200v): %s", ErrLost, p, found)
	}
	return fmt.Errorf("%w: internal error: %.200v", ErrIO, p)
}

// prove verifies all pages of the file. It returns what is wrong, or "".
func prove(path string) (wrong string) {
	f, err := openExamined(path, false)
	if err != nil {
		return err.Error()
	}
	var b *bolt.Tx
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			wrong = fmt.Sprintf("%.200v", p)
		}
		abandon(f, b)
	}()
	if _, b, err = begin(f, false, MaxWait); err != nil {
		return err.Error()
	}
	// bbolt's check reads pages in a goroutine of its own, where a page fault cannot be recovered
	// from. So all keys and values are read here first.
	err = b.ForEach(func(_ []byte, bucket *bolt.Bucket) error {
		return bucket.ForEach(func(k, v []byte) error { checksum(k); checksum(v); return nil })
	})
	for e := range b.Check() {
		err = cmp.Or(err, e)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
