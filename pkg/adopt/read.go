package adopt

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// maxFile bounds what is read of any file. The largest real ones, cache
// entries with a pod's annotations, stay below 300 KiB.
const maxFile = 1 << 20

// writeFile is os.WriteFile for a regular file or none. What else may lie at the path is refused
// without waiting for it, and a link is not followed.
func writeFile(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteString(content)
	}
	return errors.Join(err, f.Close())
}

// readFile reads a regular file, and says when it was written. What else may
// lie in such a directory (a FIFO, a link) is refused without waiting for it.
func readFile(path string) ([]byte, time.Time, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, info.ModTime(), fmt.Errorf("%s is no regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return b, info.ModTime(), err
}

// list returns the names in a directory, in order; none where it is missing.
func list(dir string) ([]string, error) {
	d, err := store.OpenDir(dir)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// isMissing: a file that is no directory has no files in it either.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
