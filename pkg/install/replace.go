package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/files"
)

const (
	leasehold = cniconf.Leasehold
	hostLocal = cniconf.HostLocal
	// kept is the file name of the original host-local while leasehold's binary has the name
	// host-local.
	kept = cniconf.HostLocalKept
)

// Dir is a node's directory of CNI plugins.
type Dir string

// DirOf returns the first of the directories that has leasehold in it, or else the first one.
func DirOf(dirs []string) Dir {
	for _, dir := range dirs {
		if d := Dir(dir); exists(d.path(leasehold)) || exists(d.path(kept)) {
			return d
		}
	}
	return Dir(dirs[0])
}

func (d Dir) path(name string) string { return filepath.Join(string(d), name) }

// Replace replaces host-local in the directory with the program, which is leasehold's plugin. It
// reports false if that is done already. The former host-local is kept under another name: the file
// itself (so that owner, mode and content are preserved), or the symbolic link. A former host-local
// that is leasehold's plugin (of any version, or a link to it) or that cannot be executed is not
// kept.
//
// At each moment the directory has an executable host-local. If it has had none, Replace returns an
// error, because no runtime uses such a directory. Replace holds the lock of the directory. What
// another program puts into host-local's place between the last two system calls is lost, and
// what was there before is kept.
func (d Dir) Replace(program []byte) (done bool, err error) { return d.put(program, hostLocal) }

// keepHostLocal keeps the present host-local before the program replaces it.
func (d Dir) keepHostLocal() error {
	target := d.path(hostLocal)
	now, err := look(target)
	switch {
	case err != nil:
		return err
	case now.CanRun && !now.Ours:
		return d.keep()
	case !now.exists && !exists(d.path(kept)):
		return fmt.Errorf("there is no %s; "+
			"--cni-bin-dir has to be the directory from which the runtime runs plugins", target)
	}
	return nil
}

// restore undoes Replace. If leasehold's plugin has the name host-local, restore renames the kept
// host-local to that name. If another program has installed host-local again, restore removes the
// kept one. restore reports whether it did either. If no usable host-local is kept, it returns an
// error and leaves leasehold's plugin in place, which serves calls as host-local does.
func (d Dir) restore() (done bool, err error) {
	err = d.locked(func() error {
		now, was, err := d.restorable()
		if err != nil || !was.exists {
			return err
		}
		done = true
		if now.exists && !now.Ours {
			err = os.Remove(d.path(kept))
		} else {
			err = os.Rename(d.path(kept), d.path(hostLocal))
		}
		return errors.Join(err, files.SyncDir(string(d)))
	})
	return done, err
}

// restorable returns what has the name host-local, and what is kept of the original. It returns an
// error if restore could not put a host-local that can be run into its place.
func (d Dir) restorable() (now, was program, err error) {
	if now, err = look(d.path(hostLocal)); err != nil {
		return now, was, err
	}
	if was, err = look(d.path(kept)); err != nil || now.exists && !now.Ours {
		return now, was, err
	}
	if was.Ours {
		was = program{} // restore removes it
	}
	switch {
	case !was.exists && now.exists:
		err = fmt.Errorf("%s is leasehold, and no other host-local is kept in %s; "+
			"install host-local (containernetworking/plugins) there", d.path(hostLocal), d)
	case was.exists && !was.CanRun:
		err = fmt.Errorf("%s cannot be run, so leasehold stays in host-local's place; "+
			"install host-local (containernetworking/plugins) there", d.path(kept))
	}
	return now, was, err
}

// locked calls f while it holds the lock of the directory, which excludes other installers. Before
// that it removes the temporary files of installers that were killed, and a kept file that is
// leasehold's plugin: that happens if the file was kept while another program was still writing it,
// or if it is a link whose target has since been replaced by leasehold's plugin. It waits up to ten
// seconds for another installer.
func (d Dir) locked(f func() error) error {
	dir, err := files.OpenDir(string(d))
	if err != nil {
		return err
	}
	if err := files.Flock(files.WithMaxWait(context.Background()), dir, syscall.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", d, err)
	}
	defer dir.Close()
	left, err := filepath.Glob(d.path(unfinished + "*"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	was, e := look(d.path(kept))
	if e == nil && was.Ours {
		e = os.Remove(d.path(kept))
	}
	if err = errors.Join(err, e); err != nil {
		return err
	}
	return f()
}

// keep keeps the present host-local, in place of one that was kept before.
func (d Dir) keep() error {
	tmp := d.path(unfinished + "kept")
	link, err := os.Readlink(d.path(hostLocal))
	if err == nil {
		// Where fs.protected_hardlinks is set, nobody may hard-link symbolic links of other users.
		err = os.Symlink(link, tmp)
	} else {
		// A hard link, not a copy: a program that is still writing the file continues to write the
		// same file.
		err = os.Link(d.path(hostLocal), tmp)
	}
	if err != nil {
		return err
	}
	defer os.Remove(tmp) // Rename does nothing if both names are hard links to one file
	return os.Rename(tmp, d.path(kept))
}

// program describes what is at a path in the directory of plugins.
type program struct {
	exists bool
	cniconf.Binary
}

// look examines a path. It returns the zero program if nothing is there. It returns an error if the
// path could not be read, or leads to something other than a regular file. For a link to a file
// that does not exist, only exists is set.
func look(path string) (p program, err error) {
	if p.exists = exists(path); !p.exists {
		return p, nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP):
		return p, nil
	case err != nil:
		return p, err
	case !info.Mode().IsRegular():
		return p, fmt.Errorf("%s is not a file (%s)", path, info.Mode())
	}
	p.Binary, err = cniconf.ReadBinary(path, info)
	return p, err
}
