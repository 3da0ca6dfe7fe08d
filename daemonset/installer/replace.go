package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
)

const (
	leasehold = cniconf.Leasehold
	hostLocal = cniconf.HostLocal
	// kept is where host-local is kept while leasehold has its name.
	kept = cniconf.HostLocalKept
)

// errChanged is returned if another program changed host-local during a replacement. Then it has to
// be tried again.
var errChanged = errors.New("host-local was changed during its replacement")

// bin is a node's directory of CNI plugins.
type bin string

func (b bin) path(name string) string { return filepath.Join(string(b), name) }

// replace puts the program, which is leasehold's plugin, in host-local's place, and reports whether
// it had to. What was there is kept beside it: the file itself, so that owner, mode and content
// stay, or the link. leasehold is never kept, in whatever version and also behind a link, nor is
// what cannot be run. At each moment there is a host-local that can be run. Where there has been
// none, it returns an error, because no runtime uses such a directory.
func (b bin) replace(program *os.File) (done bool, err error) {
	unlock, err := b.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	for range 10 {
		if done, err = b.tryReplace(program); !errors.Is(err, errChanged) {
			break
		}
	}
	return done, err
}

func (b bin) tryReplace(program *os.File) (done bool, err error) {
	if err := b.dropKept(); err != nil {
		return false, err
	}
	target := b.path(hostLocal)
	same, err := equal(program, target)
	if err != nil || same {
		return false, err
	}
	before, err := look(target)
	if err != nil {
		return false, err
	}
	if !before.exists {
		if was, err := look(b.path(kept)); err != nil || !was.exists {
			return false, errors.Join(err, fmt.Errorf("there is no %s; "+
				"--to has to be the directory from which the runtime runs plugins", target))
		}
	}
	if before.usable && !before.ours {
		if err := b.keep(before); err != nil {
			return false, err
		}
	}
	return true, put(program, target, func() error {
		now, err := look(target)
		// The second name and the rename of the one that is kept have changed its ctime.
		if now.stamp.ctime = before.stamp.ctime; err == nil && now.stamp != before.stamp {
			err = errChanged
		}
		return err
	})
}

// restore puts the host-local that was kept back, or removes it if another one is in its place. It
// reports whether it had to do either. If there is no host-local to put back, it returns an error
// and leaves leasehold, which does what host-local does.
func (b bin) restore() (done bool, err error) {
	unlock, err := b.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := b.dropKept(); err != nil {
		return false, err
	}
	now, err := look(b.path(hostLocal))
	if err != nil {
		return false, err
	}
	was, err := look(b.path(kept))
	switch {
	case err != nil:
		return false, err
	case now.exists && !now.ours && !was.exists:
		return false, nil
	case now.exists && !now.ours:
		return true, errors.Join(os.Remove(b.path(kept)), syncDir(string(b)))
	case !was.exists && !now.exists:
		return false, nil
	case !was.exists:
		return false, fmt.Errorf("%s is leasehold, and no other host-local is kept in %s; "+
			"install host-local (containernetworking/plugins) there", b.path(hostLocal), b)
	case !was.usable:
		return false, fmt.Errorf("%s cannot be run, so leasehold stays in host-local's place; "+
			"install host-local (containernetworking/plugins) there", b.path(kept))
	}
	return true, errors.Join(os.Rename(b.path(kept), b.path(hostLocal)), syncDir(string(b)))
}

// lock keeps two installers from working in the directory at the same time, and removes what one
// that was killed has left unfinished.
func (b bin) lock() (unlock func(), err error) {
	d, err := os.Open(string(b))
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { d.Close() }, b.clean()
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(until) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", b, err), d.Close())
		}
	}
}

func (b bin) clean() error {
	left, err := filepath.Glob(b.path(unfinished + "*"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// keep keeps what is in host-local's place, instead of what was kept before.
func (b bin) keep(now program) error {
	tmp := b.path(unfinished + "kept")
	var err error
	if now.link != "" {
		err = os.Symlink(now.link, tmp)
	} else {
		// A second name of the file: a copy that is still being written goes on in it.
		err = os.Link(b.path(hostLocal), tmp)
		if errors.Is(err, fs.ErrNotExist) {
			return errChanged // it was replaced at this very moment
		}
	}
	if err != nil {
		return err
	}
	defer os.Remove(tmp) // a rename of a file to another name of itself leaves both
	return os.Rename(tmp, b.path(kept))
}

// dropKept removes what is kept if it is leasehold: it was kept while somebody was still writing
// it, or is a link to what has become leasehold.
func (b bin) dropKept() error {
	was, err := look(b.path(kept))
	if err != nil || !was.ours {
		return err
	}
	return os.Remove(b.path(kept))
}

// program is what is at a path in a directory of plugins.
type program struct {
	exists bool
	link   string // where it leads to, if it is a link
	usable bool   // an executable file, or a link to one
	ours   bool   // leasehold's plugin, of any version, or a link to it
	stamp  stamp
}

// stamp changes when a file is written, replaced or changed. Its zero value stands for no file.
type stamp struct {
	dev, inode   uint64
	size         int64
	mtime, ctime syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	s := info.Sys().(*syscall.Stat_t)
	return stamp{uint64(s.Dev), s.Ino, s.Size, s.Mtim, s.Ctim}
}

// look examines a path. What cannot be read is an error, and what cannot be a plugin as well.
func look(path string) (program, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return program{}, nil
	}
	if err != nil {
		return program{}, err
	}
	p := program{exists: true, stamp: stampOf(info)}
	if info.Mode()&fs.ModeSymlink != 0 {
		if p.link, err = os.Readlink(path); err != nil {
			return program{}, err
		}
		info, err = os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) {
			return p, nil
		}
		if err != nil {
			return program{}, err
		}
	}
	if !info.Mode().IsRegular() {
		return program{}, fmt.Errorf("%s is not a file (%s)", path, info.Mode())
	}
	p.usable = info.Mode().Perm()&0o111 != 0 && info.Size() > 0
	f, err := os.Open(path)
	if err != nil {
		return program{}, err
	}
	defer f.Close()
	p.ours, err = cniconf.IsLeasehold(f)
	return p, err
}
