package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// unfinished begins the names of files that an installer has not finished. The dot hides them from
// programs that list the directory.
const unfinished = ".leasehold-installer-"

// install puts the program, which is leasehold's plugin, beside the other plugins, and reports
// whether it had to.
func (b bin) install(program *os.File) (done bool, err error) {
	if err := os.MkdirAll(string(b), 0o755); err != nil {
		return false, err
	}
	unlock, err := b.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	target := b.path(leasehold)
	if same, err := equal(program, target); err != nil || same {
		return false, err
	}
	return true, put(program, target, func() error { return nil })
}

// put copies a program to a path atomically. The runtime may call the plugin at any moment, and a
// running program cannot be written to, so the new file is complete, synced and executable before
// it is renamed. Right before that, put calls ready, and leaves everything as it is if that returns
// an error.
func put(program *os.File, target string, ready func() error) error {
	tmp, err := os.CreateTemp(filepath.Dir(target), unfinished)
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, which is fine
	_, err = io.Copy(tmp, section(program))
	// It is closed before it has the name: a file that is open for writing cannot be run.
	if err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), target); err != nil {
		return err
	}
	return syncDir(filepath.Dir(target))
}

// equal reports whether the target is a file with the same content and mode, so that a restarted
// pod does not replace it. A target that cannot be read is an error.
func equal(program *os.File, target string) (bool, error) {
	info, err := os.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
		return false, err
	}
	want, err := io.ReadAll(section(program))
	if err != nil {
		return false, err
	}
	have, err := os.ReadFile(target)
	return err == nil && bytes.Equal(want, have), err
}

// section returns a reader of a whole program that does not move the position in the file.
func section(program *os.File) io.Reader { return io.NewSectionReader(program, 0, 1<<40) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
