package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	lockShared    = syscall.LOCK_SH
	lockExclusive = syscall.LOCK_EX
)

// deadlineContext is a context with a deadline but without a timer: flock starts one when it has to
// wait. Most calls do not wait, and a running timer costs a short-lived process a thread.
type deadlineContext struct {
	context.Context
	until time.Time
}

func (p deadlineContext) Deadline() (time.Time, bool) { return p.until, true }

// WithMaxWait returns a context that limits the waiting of one call to MaxWait, or to an earlier
// deadline of ctx.
func WithMaxWait(ctx context.Context) context.Context {
	until := time.Now().Add(MaxWait)
	if at, ok := ctx.Deadline(); ok && at.Before(until) {
		return ctx
	}
	return deadlineContext{ctx, until}
}

// LockFile acquires an exclusive flock on another program's lock file, such as host-local's, and
// creates the file if it is missing. Closing the returned file releases the lock. LockFile returns
// ErrBusy if ctx is done before the lock is acquired, and after MaxWait.
func LockFile(ctx context.Context, path string) (*os.File, error) {
	return acquire(WithMaxWait(ctx), path, lockExclusive)
}

// acquire locks a file, shared or exclusive (how), and returns the open file, which the caller
// closes to unlock. It waits until ctx, which has a deadline, is done, and then returns ErrBusy.
func acquire(ctx context.Context, path string, how int) (*os.File, error) {
	for {
		f, err := openLock(path)
		if err != nil {
			return nil, fmt.Errorf("%w: lock file: %w", ErrIO, err)
		}
		if err := flock(ctx, f, how); err != nil {
			return nil, err
		}
		if isAt(f, path) {
			return f, nil
		}
		f.Close() // removed or replaced while we waited: others lock another file now, so try again
	}
}

func openLock(path string) (*os.File, error) {
	f, err := openFile(path, os.O_RDWR|os.O_CREATE)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		return openFile(path, os.O_RDWR|os.O_CREATE)
	}
	return f, err
}

// pollLimit is the longest time for which flock polls the lock. For a longer time it calls a
// blocking flock(2), which returns as soon as the lock is free, but cannot be interrupted: its
// thread remains until the lock is free, which may be never.
const pollLimit = 20 * time.Millisecond

// flock locks f. If flock fails, it closes f: at once or, because a blocking flock(2) cannot be
// interrupted, as soon as the kernel grants the lock.
func flock(ctx context.Context, f *os.File, how int) error {
	until, _ := ctx.Deadline()
	polls := time.Until(until) <= pollLimit
	err := flockEINTR(f, how|syscall.LOCK_NB)
	for polls && err == syscall.EWOULDBLOCK && time.Now().Before(until) {
		time.Sleep(min(time.Until(until), time.Millisecond/4))
		err = flockEINTR(f, how|syscall.LOCK_NB)
	}
	busy := fmt.Errorf("%w: another call holds %s", ErrBusy, f.Name())
	if !polls && err == syscall.EWOULDBLOCK {
		ctx, cancel := context.WithDeadline(ctx, until) // with a timer
		defer cancel()
		granted := make(chan error, 1)
		go func() { granted <- flockEINTR(f, how) }()
		select {
		case err = <-granted:
		case <-ctx.Done():
			go func() { <-granted; f.Close() }()
			return busy
		}
	}
	if err == nil {
		return nil
	}
	f.Close()
	if err == syscall.EWOULDBLOCK {
		return busy
	}
	return fmt.Errorf("%w: lock: %w", ErrIO, err)
}

func flockEINTR(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

// isAt reports whether the path still leads to the open file.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(open, now)
}
