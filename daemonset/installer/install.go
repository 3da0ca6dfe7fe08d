package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
)

// install copies a program into a folder in one step. The runtime may call the plugin at any moment, and a running
// program cannot be written to: so the new file is complete, on disk and executable before it takes the name.
func install(from, to string) error {
	target := filepath.Join(to, filepath.Base(from))
	if same, err := equal(from, target); err != nil || same {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	// The leading dot keeps programs that list the folder away from the unfinished file.
	tmp, err := os.CreateTemp(to, "."+filepath.Base(from)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // after the rename there is nothing of that name
	defer tmp.Close()
	if _, err := io.Copy(tmp, in); err != nil {
		return err
	}
	if err := tmp.Chmod(0o755); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), target); err != nil {
		return err
	}
	return syncDir(to)
}

// equal tells whether the target is the very same program already; then a restarted pod need not touch the node.
func equal(from, target string) (bool, error) {
	want, err := os.ReadFile(from)
	if err != nil {
		return false, err
	}
	info, err := os.Stat(target)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
		return false, nil
	}
	have, err := os.ReadFile(target)
	return err == nil && bytes.Equal(want, have), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
