package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// AnnounceDir is the announce queue: an empty file for each attachment that has
// come back to an address, named by lease.Holder.Name. What is to be announced
// stands in the store alone. Whoever announces (the node agent) takes the files
// away; the directory goes with the boot.
func (s *Store) AnnounceDir() string { return filepath.Join(s.dirs.Run, "announce") }

// maxAnnouncements bounds the queue of a node where nobody reads it.
const maxAnnouncements = 4096

// Announce puts an attachment into the queue, without the store's lock. A full
// queue takes nothing more, and that is no error: nobody reads it.
func (s *Store) Announce(who lease.Holder) error {
	dir, err := os.Open(s.AnnounceDir())
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.AnnounceDir(), 0o700); err == nil {
			dir, err = os.Open(s.AnnounceDir())
		}
	}
	if err != nil {
		return fmt.Errorf("%w: announce queue: %w", ErrIO, err)
	}
	defer dir.Close()
	if names, _ := dir.Readdirnames(maxAnnouncements); len(names) == maxAnnouncements {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(s.AnnounceDir(), who.Name()), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%w: announce queue: %w", ErrIO, err)
	}
	return f.Close()
}

// Unannounce takes an attachment out of the queue, for it has ended. It costs one
// system call where it is not in.
func (s *Store) Unannounce(who lease.Holder) {
	_ = unix.Unlink(filepath.Join(s.AnnounceDir(), who.Name()))
}
