// Package files has small files, locks, and directories in which other programs may write. It does
// not wait for what may lie at a path in place of a regular file, such as a FIFO.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Max bounds what is read of any file. The largest real ones, cache
// entries with a pod's annotations, stay below 300 KiB.
const Max = 1 << 20

// maxRead is how long the content of a regular file is waited for, as it is of some files of /proc:
// /proc/kmsg.
const maxRead = time.Second

// Write replaces the content of a regular file, or creates it. What else may lie at the path is
// refused without waiting for it, and a link is not followed.
//
// It is one write, so that a process that is killed leaves the old content or the new one; if the
// old one was longer, newlines may be left in its place, which readers ignore. Had the file been
// truncated to nothing first, ext4 would write it to the disk at once when it is closed
// (auto_da_alloc), while a commit waits for the same disk.
func Write(path, content string) error {
	f, err := Open(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	rest := 0
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case info.Size() > Max: // it is not ours
		err = f.Truncate(0)
	default:
		rest = max(0, int(info.Size())-len(content))
	}
	if text := content + strings.Repeat("\n", rest); err == nil && text != "" {
		_, err = f.WriteString(text)
	}
	if err == nil && rest > 0 {
		err = f.Truncate(int64(len(content)))
	}
	return errors.Join(err, f.Close())
}

// Open is os.OpenFile that never blocks, not even if the path leads to a FIFO. A file that it
// creates has mode 0600.
func Open(path string, flag int) (*os.File, error) {
	return os.OpenFile(path, flag|syscall.O_NONBLOCK, 0o600)
}

// Canonical returns the path without links, as far as the path exists.
func Canonical(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); err != nil && parent != path {
		return filepath.Join(Canonical(parent), filepath.Base(path))
	}
	return real
}

// Replace replaces a file atomically: readers get either the old content or the new one. The new
// file gets the mode and the owner of the old one. If a link is at the path, its target is
// replaced. It waits until the disk has the content.
func Replace(path string, content []byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".leasehold-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, which is fine
	owner := info.Sys().(*syscall.Stat_t)
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Chown(int(owner.Uid), int(owner.Gid)), tmp.Sync(),
		tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// Read reads a regular file, and says when it was written. What else may
// lie in such a directory (a FIFO, a link) is refused without waiting for it.
func Read(path string) ([]byte, time.Time, error) {
	return read(path, syscall.O_NOFOLLOW, fs.FileInfo.ModTime)
}

// ReadLinked reads a regular file, also where the path leads to it through links. It returns when
// the file or the link at the path was last changed: written, replaced, renamed, or given another
// mode or owner. That time (ctime) cannot be set, unlike the time of the last write, which packages
// and backups restore.
func ReadLinked(path string) ([]byte, time.Time, error) {
	return read(path, 0, func(info fs.FileInfo) time.Time { return Changed(path, info) })
}

// Changed returns when a file with this information, or the link to it at the path, was last
// changed.
func Changed(path string, info fs.FileInfo) time.Time {
	at := info.Sys().(*syscall.Stat_t).Ctim
	if link, err := os.Lstat(path); err == nil {
		if l := link.Sys().(*syscall.Stat_t).Ctim; l.Nano() > at.Nano() {
			at = l
		}
	}
	return time.Unix(at.Unix())
}

// read returns no time if the file could not be opened, and no content if it is not a regular file.
func read(path string, flags int, at func(fs.FileInfo) time.Time) ([]byte, time.Time, error) {
	f, err := Open(path, os.O_RDONLY|flags)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, at(info), fmt.Errorf("%s is not a regular file", path)
	}
	_ = f.SetReadDeadline(time.Now().Add(maxRead)) // an error says that no read of the file waits
	b, err := io.ReadAll(io.LimitReader(f, Max+1))
	if err == nil && len(b) > Max {
		err = fmt.Errorf("%s is larger than %d bytes", path, Max)
	}
	return b, at(info), err
}

// List returns the names in a directory, in order; none where it is missing.
func List(dir string) ([]string, error) {
	names, err := Names(dir)
	if IsMissing(err) {
		return nil, nil
	}
	return names, err
}

// Names returns the names in a directory, in order. If the directory cannot be read to its end,
// Names returns the error with the names before.
func Names(dir string) ([]string, error) {
	d, err := OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// IsMissing reports whether an error says that there is no such file. A file that is not a
// directory has no files in it either, and no file has a name that is too long.
func IsMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}

// OpenDir opens a directory. It fails with ENOTDIR for anything else, and does not wait.
func OpenDir(path string) (*os.File, error) {
	return Open(path, syscall.O_DIRECTORY)
}

// SyncDir waits until the disk has the entries of a directory, after files were created, renamed or
// removed in it.
func SyncDir(path string) error {
	d, err := OpenDir(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
