// Package descriptors limits and counts the open files of a test's process.
package descriptors

import (
	"os"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// Limit calls f while at most n more files can be opened. Tests that call it cannot run in parallel
// with others.
func Limit(t *testing.T, n int, f func()) {
	t.Helper()
	lowest, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(lowest)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	limit := before
	limit.Cur = uint64(lowest + n)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// AssertClosed calls f several times, and checks that no file is open afterwards that was not open
// after the first call.
func AssertClosed(t *testing.T, f func()) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collected file is closed
	opened := func() int {
		t.Helper()
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	f()
	before := opened()
	for range 3 {
		f()
	}
	if after := opened(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
