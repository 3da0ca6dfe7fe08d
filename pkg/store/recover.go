package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

func (s *Store) lostDir() string { return filepath.Join(s.dirs.State, "lost") }

// replace moves a lost store aside, never deleting it, and puts an empty one in
// its place that knows what it is. The caller has the lock.
func (s *Store) replace(why error) error {
	if err := s.setAside(); err != nil {
		return fmt.Errorf("%w: moving it aside: %w", ErrIO, err)
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
	return syncDir(s.lostDir())
}

// Discard declares the store lost by hand, as if it had been found damaged.
func (s *Store) Discard(ctx context.Context, why string) error {
	lock, err := acquire(Patient(ctx), s.lock(), lockExclusive)
	if err != nil {
		return err
	}
	defer lock.Close()
	return s.replace(fmt.Errorf("%w: %s", ErrLost, why))
}

// panicked tells damage from a mistake of ours: only a file that does not prove
// sound is lost for a panic.
func panicked(path string, p any) error {
	if found := prove(path); found != "" {
		return fmt.Errorf("%w: reading it failed (%.200v): %s", ErrLost, p, found)
	}
	return fmt.Errorf("%w: internal error: %.200v", ErrIO, p)
}

// prove reads the whole file, and says what is wrong with it.
func prove(path string) string {
	b, err := readUpTo(path, maxSize)
	if err == nil {
		err = provePages(b)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func readUpTo(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("it has %d bytes", info.Size())
	}
	return os.ReadFile(path)
}
