// Package ownproc is the /proc of a host on which nothing runs but the test, whose addresses other
// tests of the machine do not change.
package ownproc

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/leasehold-cni/leasehold/test/must"
)

// Dir returns a directory that shows the processes 1, 2 and this one, and what /proc says of the
// kernel.
func Dir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	self := strconv.Itoa(os.Getpid())
	errs := []error{os.Symlink(self, filepath.Join(dir, "self"))}
	for _, name := range []string{"1", "2", self, "thread-self", "sys"} {
		errs = append(errs, os.Symlink(filepath.Join("/proc", name), filepath.Join(dir, name)))
	}
	must.Succeed(t, errors.Join(errs...))
	return dir
}
