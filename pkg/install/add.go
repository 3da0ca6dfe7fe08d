package install

import (
	"bytes"
	"errors"
	"io/fs"
	"os"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// unfinished is the prefix of the names of temporary files. An installer that was killed may have
// left such files, and locked removes them. The names begin with a dot, so that programs that list
// plugins ignore the files.
const unfinished = ".leasehold-installer-"

// Install copies the program, which is leasehold's plugin, to the directory of plugins under the
// name leasehold. It reports false if the same file is there already.
func (d Dir) Install(program []byte) (done bool, err error) {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return false, err
	}
	return d.put(program, leasehold)
}

// put copies a program to the directory atomically, and reports false if it is there already. The
// runtime may run the plugin at any moment, and a program that is running cannot be written to. So
// put writes a temporary file, makes it executable, syncs it, and renames it. Just before the
// rename it keeps the host-local that is replaced. If that fails, put leaves it unchanged.
func (d Dir) put(program []byte, name string) (done bool, err error) {
	target := d.path(name)
	err = d.locked(func() error {
		same, err := equal(program, target)
		if err != nil || same {
			return err
		}
		tmp, err := os.CreateTemp(string(d), unfinished)
		if err != nil {
			return err
		}
		defer os.Remove(tmp.Name()) // fails after the rename, which is fine
		_, err = tmp.Write(program)
		// The file is closed before it is renamed, because a file that is open for writing cannot
		// be executed.
		if err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close()); err != nil {
			return err
		}
		if name == hostLocal {
			if err := d.keepHostLocal(); err != nil {
				return err
			}
		}
		done = true
		return errors.Join(os.Rename(tmp.Name(), target), files.SyncDir(string(d)))
	})
	return done, err
}

// equal reports whether the target is a regular file with the content of program and mode 0755. If
// so, a pod that restarts does not replace it. equal returns an error if the target exists and
// could not be read.
func equal(program []byte, target string) (bool, error) {
	info, err := os.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
		return false, err
	}
	have, err := os.ReadFile(target)
	return err == nil && bytes.Equal(program, have), err
}
