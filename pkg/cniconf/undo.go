package cniconf

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// Change is a change of a configuration file. The zero value is no change.
type Change struct {
	Path          string
	Before, After []byte
}

// Undos returns the changes with which all configurations in a directory that name leasehold call
// host-local again. It returns an error for each file that cannot be read, or not be changed
// without changing what pods get.
func Undos(dir string) (all []Change, err error) {
	paths, err := confFiles(dir)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		c, e := undoOf(path)
		if e != nil {
			err = errors.Join(err, e)
		} else if c.Path != "" {
			all = append(all, c)
		}
	}
	return all, err
}

// undoOf returns the change of one configuration file. It returns an error as Undos does.
func undoOf(path string) (Change, error) {
	f := readFile(path)
	if f.Unread != nil {
		return Change{}, f.Unread
	}
	for _, p := range f.Plugins {
		if p.File != path && (p.Type == Leasehold || p.IPAM.Type == Leasehold) {
			return Change{}, fmt.Errorf("%s names leasehold; name host-local there, or remove it", p.File)
		}
	}
	after, err := WithoutLeasehold(path, f.content)
	if err != nil {
		return Change{}, fmt.Errorf("%s: %w", path, err)
	}
	if bytes.Equal(f.content, after) { // also of a link that leads nowhere: no runtime can load it
		return Change{}, nil
	}
	// The agent's container, which is asked whether leasehold can be removed, has fewer rights to
	// others' files than the one that removes it.
	if err := unix.Access(filepath.Dir(path), unix.W_OK); err != nil && !errors.Is(err, unix.EACCES) {
		return Change{}, fmt.Errorf("%s names leasehold and cannot be changed: %w; name host-local there", path, err)
	}
	return Change{Path: path, Before: f.content, After: after}, nil
}

// Write writes the file. It returns an error if the file has changed since Before was read.
func (c Change) Write() error {
	now, _, err := files.ReadLinked(c.Path)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, c.Before) {
		return fmt.Errorf("%s was changed by another program meanwhile; try again", c.Path)
	}
	return files.Replace(c.Path, c.After)
}
