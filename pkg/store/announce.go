package store

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// maxName is the longest name of an attachment that becomes part of a file's name, which may have
// 255 bytes: a queued DEL's also has a boot id and two times.
const maxName = 160

// nameOf returns the name of an attachment for the name of a file, and the first line of the file.
// A name is written atomically, so that the line is empty, unless the attachment's is too long.
func nameOf(who lease.Attachment) (name, line string) {
	if name = who.Name(); len(name) <= maxName {
		return name, ""
	}
	h := fnv.New128a()
	h.Write([]byte(name))
	return fmt.Sprintf("#%x", h.Sum(nil)), name + "\n"
}

// AttachmentOf returns the attachment that a file of a queue in the run directory is about, by the
// part of its name and by its path. It reports false if the name is not valid, or if it begins with
// # and the file's content is not written yet.
func AttachmentOf(name, path string) (lease.Attachment, bool) {
	if !strings.HasPrefix(name, "#") {
		return lease.ParseAttachment(name)
	}
	b, _, _ := files.Read(path)
	line, _, whole := strings.Cut(string(b), "\n")
	who, ok := lease.ParseAttachment(line)
	if expected, _ := nameOf(who); !ok || !whole || expected != name {
		return lease.Attachment{}, false
	}
	return who, true
}

// createNamed creates a file of a queue (what) in its directory.
func createNamed(what, dir, name, content string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var f *os.File
		if f, err = openFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY); err == nil {
			if content != "" {
				_, err = f.WriteString(content)
			}
			err = cmp.Or(err, f.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrIO, what, err)
	}
	return nil
}

// AnnounceDir returns the directory of the announce queue. It has a file for each attachment that
// came back to its address (AttachmentOf). The node agent reads the attachment's addresses from the
// store, announces them and removes the file. The directory does not survive a reboot.
func (s *Store) AnnounceDir() string { return filepath.Join(s.dirs.Run, "announce") }

// Announce adds an attachment to the queue. It does not need the store's lock. On a node without an
// agent the file stays until the attachment ends.
func (s *Store) Announce(who lease.Attachment) error {
	name, line := nameOf(who)
	return createNamed("announce queue", s.AnnounceDir(), name, line)
}

// Unannounce removes an attachment that has ended from the queue. It costs one system call if the
// attachment is not in the queue.
func (s *Store) Unannounce(who lease.Attachment) {
	name, _ := nameOf(who)
	_ = unix.Unlink(filepath.Join(s.AnnounceDir(), name))
}
