package cniconf

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// Undo is the change of a configuration file that names leasehold, with which it calls host-local
// again. The zero value is no change.
type Undo struct {
	Path          string
	Before, After []byte
}

// Undos returns the changes of all configurations in a directory. It returns an error for each file
// that cannot be read, or not be changed without changing what pods get.
func Undos(dir string) (all []Undo, err error) {
	paths, err := confFiles(dir)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		u, e := undoOf(path)
		if e != nil {
			err = errors.Join(err, e)
		} else if u.Path != "" {
			all = append(all, u)
		}
	}
	return all, err
}

// undoOf returns the change of one configuration file. It returns an error as Undos does.
func undoOf(path string) (Undo, error) {
	f := readFile(path)
	if f.Unread != nil {
		return Undo{}, f.Unread
	}
	for _, p := range f.Plugins {
		if p.File != path && (p.Type == Leasehold || p.IPAM.Type == Leasehold) {
			return Undo{}, fmt.Errorf("%s names leasehold; name host-local there, or remove it", p.File)
		}
	}
	content, _, err := files.ReadLinked(path)
	if files.IsMissing(err) {
		return Undo{}, nil // a link that leads nowhere: no runtime can load it
	}
	if err != nil {
		return Undo{}, err
	}
	after, err := WithoutLeasehold(path, content)
	if err != nil {
		return Undo{}, fmt.Errorf("%s: %w", path, err)
	}
	if bytes.Equal(content, after) {
		return Undo{}, nil
	}
	// The agent's container, which is asked whether leasehold can be removed, has fewer rights to
	// others' files than the one that removes it.
	if err := unix.Access(filepath.Dir(path), unix.W_OK); err != nil && !errors.Is(err, unix.EACCES) {
		return Undo{}, fmt.Errorf("%s names leasehold and cannot be changed: %w; name host-local there", path, err)
	}
	return Undo{Path: path, Before: content, After: after}, nil
}

// Write writes the file. It returns an error if the file has changed since Undos.
func (u Undo) Write() error {
	now, _, err := files.ReadLinked(u.Path)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, u.Before) {
		return fmt.Errorf("%s was changed by another program meanwhile; try again", u.Path)
	}
	return files.Replace(u.Path, u.Path, u.After)
}
