package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// AnnounceDir returns the directory of the announce queue. It has an empty file for each attachment
// that came back to its address, with lease.Holder.Name as the name. The node agent reads the
// attachment's addresses from the store, announces them and removes the file. The directory does
// not survive a reboot.
func (s *Store) AnnounceDir() string { return filepath.Join(s.dirs.Run, "announce") }

// maxAnnouncements limits the queue of a node without an agent.
const maxAnnouncements = 4096

// Announce adds an attachment to the queue. It does not need the store's lock. If the queue is
// full, no agent reads it: then the attachment is not added, and Announce returns nil.
func (s *Store) Announce(who lease.Holder) error {
	dir, err := files.OpenDir(s.AnnounceDir())
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.AnnounceDir(), 0o700); err == nil {
			dir, err = files.OpenDir(s.AnnounceDir())
		}
	}
	if err != nil {
		return fmt.Errorf("%w: announce queue: %w", ErrIO, err)
	}
	defer dir.Close()
	if names, _ := dir.Readdirnames(maxAnnouncements); len(names) == maxAnnouncements {
		return nil
	}
	f, err := openFile(filepath.Join(s.AnnounceDir(), who.Name()), os.O_CREATE|os.O_WRONLY)
	if err != nil {
		return fmt.Errorf("%w: announce queue: %w", ErrIO, err)
	}
	return f.Close()
}

// Unannounce removes an attachment that has ended from the queue. It costs one system call if the
// attachment is not in the queue.
func (s *Store) Unannounce(who lease.Holder) {
	_ = unix.Unlink(filepath.Join(s.AnnounceDir(), who.Name()))
}
