package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

func (s *Store) lostDir() string { return filepath.Join(s.dirs.State, "lost") }

// replace moves a lost store to the directory lost, and creates an empty store that contains the
// reason (Tx.Lost). The caller holds the lock.
func (s *Store) replace(why error) error {
	if err := s.setAside(); err != nil {
		return fmt.Errorf("%w: moving the lost store: %w", ErrIO, err)
	}
	if err := create(s.path(), why.Error(), s.BootID()); err != nil {
		return err
	}
	return s.setMark()
}

func (s *Store) setAside() error {
	if _, err := os.Lstat(s.path()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	name := filepath.Join(s.lostDir(), "leases.db."+time.Now().UTC().Format("20060102T150405.000000000Z"))
	err := os.MkdirAll(s.lostDir(), 0o700)
	if err == nil {
		err = os.Rename(s.path(), name)
	}
	if err == nil {
		err = files.SyncDir(s.lostDir())
	}
	return err
}
