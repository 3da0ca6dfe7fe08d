package cniconf

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// maxBinary is the largest size of a binary that is read, in bytes. The binaries of plugins have
// some ten megabytes.
const maxBinary = 1 << 30

// program is the package path of leasehold's plugin, which the build information of its binary
// contains.
const program = "github.com/leasehold-cni/leasehold/plugins/ipam/leasehold"

// Binaries finds and identifies the binaries of plugins. It reads a file again only after the file
// has changed. It is safe for concurrent use.
type Binaries struct {
	// Dirs are the directories of plugins, searched in this order, as those in CNI_PATH.
	Dirs []string

	mu   sync.Mutex
	seen map[string]identity
}

// Binary is the file that a runtime runs for a plugin type.
type Binary struct {
	// Path is the path of the file. It is "" if none of the directories has a file with the name of
	// the type.
	Path string
	// Ours reports whether the file is leasehold's plugin, of any version and under any file name,
	// according to the build information in the file.
	Ours bool
	// Executable reports whether the file has the permission to be run.
	Executable bool
	Digest     [sha256.Size]byte
	Changed    time.Time // when the file was last written, replaced, renamed or had its mode changed
}

// identity is what is known of the content of a file. It is valid as long as the file has the same
// stamp.
type identity struct {
	stamp  stamp
	digest [sha256.Size]byte
	ours   bool
}

// stamp changes whenever a file is written, replaced, renamed or has its mode changed.
type stamp struct {
	dev, inode   uint64
	size         int64
	mtime, ctime syscall.Timespec
}

// Resolve returns the binary of a plugin type. As libcni does, it takes the first regular file with
// the name of the type in Dirs. It returns the zero Binary if there is none. It returns an error if
// a directory or the binary could not be read: the runtime, with other permissions, may find
// another binary.
func (b *Binaries) Resolve(kind string) (Binary, error) {
	if kind == "" || strings.ContainsRune(kind, filepath.Separator) || kind == "." || kind == ".." {
		return Binary{}, nil // libcni rejects such a type
	}
	for _, dir := range b.Dirs {
		path := filepath.Join(dir, kind)
		info, err := os.Stat(path)
		switch {
		case files.IsMissing(err):
			continue
		case err != nil:
			return Binary{}, fmt.Errorf("looking for plugin %s: %w", kind, err)
		case !info.Mode().IsRegular():
			continue
		}
		return b.read(path)
	}
	return Binary{}, nil
}

// read returns the Binary of an existing file.
func (b *Binaries) read(path string) (Binary, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Binary{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Binary{}, err
	}
	now := stampOf(info)
	b.mu.Lock()
	id, known := b.seen[path]
	b.mu.Unlock()
	if !known || id.stamp != now {
		if id, err = identify(f); err != nil {
			return Binary{}, fmt.Errorf("reading the plugin %s: %w", path, err)
		}
		id.stamp = now
		b.mu.Lock()
		if b.seen == nil {
			b.seen = map[string]identity{}
		}
		b.seen[path] = id
		b.mu.Unlock()
	}
	changed := files.Changed(info)
	if link, err := os.Lstat(path); err == nil && files.Changed(link).After(changed) {
		changed = files.Changed(link)
	}
	return Binary{Path: path, Ours: id.ours, Executable: info.Mode().Perm()&0o111 != 0, Digest: id.digest,
		Changed: changed}, nil
}

// identify reads the content of a file. The stamp of the result is not set.
func identify(f *os.File) (identity, error) {
	var id identity
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, maxBinary+1))
	if err != nil {
		return id, err
	}
	if n > maxBinary {
		return id, fmt.Errorf("%s is larger than %d bytes", f.Name(), maxBinary)
	}
	h.Sum(id.digest[:0])
	id.ours, err = IsLeasehold(f)
	return id, err
}

// IsLeasehold reports whether a binary is leasehold's plugin, of any version, according to its
// build information. It returns an error if the file could not be read.
func IsLeasehold(binary *os.File) (bool, error) {
	info, err := buildinfo.Read(binary)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		return false, err
	}
	return err == nil && info.Path == program, nil // any other error means that the file is not a Go program
}

func stampOf(info os.FileInfo) stamp {
	s := info.Sys().(*syscall.Stat_t)
	return stamp{uint64(s.Dev), s.Ino, s.Size, s.Mtim, s.Ctim} //nolint:unconvert // other on other architectures
}
