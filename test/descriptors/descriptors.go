// Package descriptors counts the open files of a test's process.
package descriptors

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// AssertClosed calls f several times, and checks that no file is open afterwards that was not open
// after the first call.
func AssertClosed(t *testing.T, f func()) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collected file is closed
	opened := func() int {
		t.Helper()
		fds, err := os.ReadDir("/proc/self/fd")
		must.Succeed(t, err)
		return len(fds)
	}
	f()
	before := opened()
	for range 3 {
		f()
	}
	check.Equal(t, opened(), before, "descriptors")
}
