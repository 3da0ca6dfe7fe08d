package store

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// AnnounceDir returns the directory of the announce queue. It has an empty file for each attachment
// that came back to its address, with lease.Attachment.Name as the name. The node agent reads the
// attachment's addresses from the store, announces them and removes the file. The directory does
// not survive a reboot.
func (s *Store) AnnounceDir() string { return filepath.Join(s.dirs.Run, "announce") }

// Announce adds an attachment to the queue. It does not need the store's lock. On a node without an
// agent the file stays until the attachment ends.
func (s *Store) Announce(who lease.Attachment) error {
	err := os.MkdirAll(s.AnnounceDir(), 0o700)
	if err == nil {
		var f *os.File
		if f, err = openFile(filepath.Join(s.AnnounceDir(), who.Name()), os.O_CREATE|os.O_WRONLY); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("%w: announce queue: %w", ErrIO, err)
	}
	return nil
}

// Unannounce removes an attachment that has ended from the queue. It costs one system call if the
// attachment is not in the queue.
func (s *Store) Unannounce(who lease.Attachment) {
	_ = unix.Unlink(filepath.Join(s.AnnounceDir(), who.Name()))
}
