// Package rundir has the files of the run directory: queued DELs, pods to announce, the call log,
// and the mark by which the loss of a store is found.
//
// The run directory is on a tmpfs. What it has is valid for this boot only: a power cut that loses
// it ends all containers, too. Only SetMark and SetUsed need the store's lock.
package rundir

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Dir is the run directory of a node.
type Dir struct {
	Path   string
	BootID func() string // returns the id of the present boot, or "" if it cannot be read; for the mark
}

func (d Dir) path(name string) string { return filepath.Join(d.Path, name) }

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

// AttachmentOf returns the attachment that a queued DEL or an announcement is about, by the part of
// the file's name and by its path. It reports false if the name is not valid, or if it begins with
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

// poolLine ends with a line break, so that a part of it is not taken for a pool.
func poolLine(p lease.Pool) string { return p.DataDir + "\x00" + p.Network + "\n" }

// create creates a file in one of the directories.
func create(dir, name, content string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return files.Write(filepath.Join(dir, name), content)
}
