package cniconf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// UndoneSuffix is added to the name of a configuration file that was edited by hand and in which
// uninstalling has named host-local again, for the file with the former content. No runtime loads
// files with that extension.
const UndoneSuffix = ".before-uninstall"

// Undo is the change of a configuration file that names leasehold, or that `leasectl install` has
// changed, with which it calls host-local again. The zero value is no change.
type Undo struct {
	Path          string
	Before, After []byte
	// Edited reports whether After is not what was there before `leasectl install`. Then Write
	// keeps Before in a file beside it.
	Edited bool
}

// Undos returns the changes of all configurations in a directory. It returns an error for each file
// that cannot be read, or not be changed without changing what pods get.
func Undos(dir string) (all []Undo, err error) {
	paths, err := confFiles(dir, extensions...)
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
	backup, err := os.ReadFile(path + BackupSuffix)
	if err != nil && !files.IsMissing(err) {
		return Undo{}, err
	}
	hasBackup := err == nil
	after, edited, err := WithoutLeasehold(path, content, backup)
	if err != nil {
		return Undo{}, fmt.Errorf("%s: %w", path, err)
	}
	if !hasBackup && bytes.Equal(content, after) {
		return Undo{}, nil
	}
	// The agent's container, which is asked whether leasehold can be removed, has fewer rights to
	// others' files than the one that removes it.
	if err := unix.Access(filepath.Dir(path), unix.W_OK); err != nil && !errors.Is(err, unix.EACCES) {
		return Undo{}, fmt.Errorf("%s names leasehold and cannot be changed: %w; name host-local there", path, err)
	}
	return Undo{Path: path, Before: content, After: after, Edited: edited}, nil
}

// Write writes the file, and removes the backup of leasectl install. It returns an error if the
// file has changed since Undos.
func (u Undo) Write() error {
	now, _, err := files.ReadLinked(u.Path)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, u.Before) {
		return fmt.Errorf("%s was changed by another program meanwhile; try again", u.Path)
	}
	if u.Edited {
		if err := files.Replace(u.Path+UndoneSuffix, u.Path, u.Before); err != nil {
			return err
		}
	}
	if !bytes.Equal(u.Before, u.After) {
		if err := files.Replace(u.Path, u.Path, u.After); err != nil {
			return err
		}
	}
	if err := os.Remove(u.Path + BackupSuffix); !files.IsMissing(err) {
		return err
	}
	return nil
}

// WithoutLeasehold returns the content of a configuration that calls host-local where text calls
// leasehold. name is the same as for Parse. before is the content that leasectl install has
// changed, nil if it has changed none.
//
// What leasectl install has made of before becomes before again. In any other text that names
// leasehold, which somebody has edited, host-local is named in its place, and its chained entries
// are removed; then edited is true. Pods get the same from both: host-local reads the same keys,
// ignores those of leasehold alone, and its files have all addresses that are in use. If the text
// cannot be changed without changing anything else, the result is an error.
func WithoutLeasehold(name string, text, before []byte) (content []byte, edited bool, err error) {
	if before != nil && IsMadeOf(name, text, before) {
		text = before
	}
	f, err := Parse(name, text)
	if f.Invalid != nil || err == nil && !f.NamesLeasehold() {
		return text, false, nil // no runtime loads an invalid configuration
	}
	if err != nil {
		return nil, false, err
	}
	for _, p := range slices.Backward(flatten(f.Plugins)) { // removing an entry moves those behind it
		switch {
		case p.Type == Leasehold:
			text, err = remove(text, p.Pointer)
		case p.IPAM.Type == Leasehold:
			text, err = set(text, p.IPAM.Pointer, HostLocal)
		}
		if err != nil {
			return nil, false, fmt.Errorf("it names leasehold: %w", err)
		}
	}
	return text, true, nil
}

// IsMadeOf reports whether leasectl install makes text of before, by one or both of its changes, in
// any order.
func IsMadeOf(name string, text, before []byte) bool {
	for _, changes := range [][]func(string, []byte) ([]byte, error){
		{WithLeasehold}, {WithAnnotations}, {WithLeasehold, WithAnnotations}, {WithAnnotations, WithLeasehold},
	} {
		changed, err := before, error(nil)
		for _, change := range changes {
			if err == nil {
				changed, err = change(name, changed)
			}
		}
		if err == nil && bytes.Equal(text, changed) {
			return true
		}
	}
	return false
}
