package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
)

// install copies a program into a directory atomically. The runtime may call the plugin at any
// moment, and a running program cannot be written to, so the new file is complete, synced and
// executable before it is renamed.
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
	// A leading dot hides the unfinished file from programs that list the directory.
	tmp, err := os.CreateTemp(to, "."+filepath.Base(from)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, which is fine
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

// equal reports whether the target has the same content and mode, so that a restarted pod does not
// replace it.
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
