package cniconf

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// program is the package path of leasehold's plugin, which the build information of its binary
// contains.
const program = "github.com/leasehold-cni/leasehold/plugins/ipam/leasehold"

// Binaries are the directories of plugins, searched in this order, as those in CNI_PATH.
type Binaries []string

// Binary is the file that a runtime runs for a plugin type.
type Binary struct {
	// Path is the path of the file. It is "" if none of the directories has a file with the name of
	// the type.
	Path string
	// Ours reports whether the file is leasehold's plugin, of any version and under any file name,
	// according to the build information in the file. What Resolve returns can also be run then.
	Ours bool
	// CanRun reports whether the file has the permission to be run, and is not empty.
	CanRun  bool
	Changed time.Time // when the file was last written, replaced, renamed or had its mode changed
}

// Resolve returns the binary of a plugin type. As libcni does, it takes the first regular file with
// the name of the type. It returns the zero Binary if there is none. It returns an error if a
// directory or the binary could not be read: the runtime, with other permissions, may find another
// binary.
func (b Binaries) Resolve(kind string) (Binary, error) {
	if kind == "" || strings.ContainsRune(kind, filepath.Separator) || kind == "." || kind == ".." {
		return Binary{}, nil // libcni rejects such a type
	}
	for _, dir := range b {
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
		found, err := ReadBinary(path, info)
		found.Ours = found.Ours && found.CanRun
		return found, err
	}
	return Binary{}, nil
}

// ReadBinary returns the Binary of an existing regular file. It returns an error if the file could
// not be read.
func ReadBinary(path string, info fs.FileInfo) (Binary, error) {
	f, err := files.Open(path, os.O_RDONLY)
	if err != nil {
		return Binary{}, err
	}
	defer f.Close()
	if _, err := f.ReadAt(make([]byte, 1), 0); err != nil && !errors.Is(err, io.EOF) {
		return Binary{}, fmt.Errorf("reading the plugin %s: %w", path, err)
	}
	build, err := buildinfo.Read(f)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		return Binary{}, fmt.Errorf("reading the plugin %s: %w", path, err)
	}
	isOurs := err == nil && build.Path == program // any other error means that the file is not a Go program
	canRun := info.Mode().Perm()&0o111 != 0 && info.Size() > 0
	return Binary{Path: path, Ours: isOurs, CanRun: canRun, Changed: files.Changed(path, info)}, nil
}
