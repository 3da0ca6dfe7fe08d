package store

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// openFile is os.OpenFile that never blocks, not even if the path leads to a FIFO.
func openFile(path string, flag int) (*os.File, error) {
	return os.OpenFile(path, flag|syscall.O_NONBLOCK, 0o600)
}

// readFile reads a regular file, and fails for anything else.
func readFile(path string) ([]byte, error) {
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}
