package files

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A wait that the kernel does not end keeps a thread, and a process may have 10,000: an agent that
// waits for a lock that is never released must not accumulate them.
func TestShortWaitsForALockLeaveNothingBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := Lock(context.Background(), path, syscall.LOCK_EX)
	must.Succeed(t, err)
	defer lock.Close()
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		_, err := Lock(ctx, path, syscall.LOCK_EX)
		check.Is(t, err, ErrBusy)
		cancel()
	}
	if left := runtime.NumGoroutine() - before; left > 2 { // the runtime's own
		t.Errorf("%d goroutines are left", left)
	}
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(pollLimit/2, func() { lock.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), pollLimit)
		defer cancel()
		again, err := Lock(ctx, path, syscall.LOCK_EX)
		must.Succeed(t, err, "it was released in time")
		again.Close()
	})
}

// TestReplacedLockFile replaces a lock file while a call waits for its lock. Others lock the new
// file, so the lock of the old one excludes nobody: the call has to wait for that of the new one.
func TestReplacedLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	synctest.Test(t, func(t *testing.T) {
		lock := func(limit time.Duration) (*os.File, error) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			return Lock(ctx, path, syscall.LOCK_EX)
		}
		old, err := lock(pollLimit)
		must.Succeed(t, err)
		var other *os.File
		time.AfterFunc(pollLimit/4, func() {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
			if other, err = lock(0); err != nil {
				t.Error(err)
			}
			old.Close()
		})
		mine, err := lock(pollLimit / 2)
		check.Is(t, err, ErrBusy, "a lock that another call holds:", mine)
		time.AfterFunc(pollLimit/4, func() { other.Close() })
		mine, err = lock(pollLimit)
		must.Succeed(t, err)
		mine.Close()
	})
}
