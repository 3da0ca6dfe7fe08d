package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// The mark is a file in the run directory that the first Update of a boot creates. Its first line
// is the id of the boot, and the others are the pools in which addresses were given in this boot:
// only in those may a container live that a lost store knew, because a boot ends all containers.
func (s *Store) mark() string { return filepath.Join(s.dirs.Run, "used") }

func (s *Store) bootID() string {
	if s.BootID == nil {
		return ""
	}
	return s.BootID()
}

// readMark returns the pools of the mark, and reports whether there is a mark of this boot.
func (s *Store) readMark() (pools []string, marked bool, err error) {
	b, _, err := files.Read(s.mark())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	lines := slices.Collect(strings.Lines(string(b)))
	boot, of := s.bootID(), strings.TrimSuffix(strings.Join(lines[:min(len(lines), 1)], ""), "\n")
	if boot != "" && of != "" && of != boot {
		return nil, false, nil // the run directory has survived a boot
	}
	return lines[min(len(lines), 1):], true, nil
}

func (s *Store) writeMark(pools []string) error {
	if err := files.Write(s.mark(), s.bootID()+"\n"+strings.Join(pools, "")); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}

// setMark makes a mark of this boot, if there is none.
func (s *Store) setMark() error {
	_, marked, err := s.readMark()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	if marked {
		return nil
	}
	return s.writeMark(nil)
}

// SetUsed adds a pool to the mark, if it is not there. The caller holds the store's lock, because
// it is in the Then of an Update.
func (s *Store) SetUsed(p lease.Pool) error {
	pools, _, err := s.readMark()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	if slices.Contains(pools, poolLine(p)) {
		return nil
	}
	return s.writeMark(append(pools, poolLine(p)))
}

// Used reports whether addresses of a pool may have been given in this boot.
func (s *Store) Used(p lease.Pool) bool {
	pools, _, err := s.readMark()
	return err != nil || slices.Contains(pools, poolLine(p))
}
