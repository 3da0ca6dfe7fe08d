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

// Undos returns the changes with which all configurations in the directory that name leasehold call
// host-local again. It returns an error for each file that cannot be read, or not be changed
// without changing what pods get.
func (c Conf) Undos() (all []Change, err error) {
	if len(c.Files) == 0 {
		return nil, c.Unread
	}
	for _, f := range c.Files {
		undo, e := f.undo()
		if e != nil {
			err = errors.Join(err, e)
		} else if undo.Path != "" {
			all = append(all, undo)
		}
	}
	return all, err
}

// undo returns the change of one configuration file. It returns an error as Undos does.
func (f File) undo() (Change, error) {
	if f.Unread != nil {
		return Change{}, f.Unread
	}
	for _, p := range f.Plugins {
		if p.File != f.Path && p.isOrCallsLeasehold() {
			return Change{}, fmt.Errorf("%s names leasehold; name host-local there, or remove it", p.File)
		}
	}
	after, err := WithoutLeasehold(f.Path, f.content)
	if err != nil {
		return Change{}, fmt.Errorf("%s: %w", f.Path, err)
	}
	if bytes.Equal(f.content, after) { // also of a link that leads nowhere: no runtime can load it
		return Change{}, nil
	}
	// The agent's container, which is asked whether leasehold can be removed, has fewer rights to
	// others' files than the one that removes it.
	if err := unix.Access(filepath.Dir(f.Path), unix.W_OK); err != nil && !errors.Is(err, unix.EACCES) {
		return Change{}, fmt.Errorf("%s names leasehold and cannot be changed: %w; name host-local there", f.Path, err)
	}
	return Change{Path: f.Path, Before: f.content, After: after}, nil
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
