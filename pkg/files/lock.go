package files

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

// ErrBusy is returned if a lock was not acquired in time.
var ErrBusy = errors.New("another call holds the lock")

// MaxWait is the longest time for which a call waits for a lock.
const MaxWait = 10 * time.Second

// deadlineContext is a context with a deadline but without a timer: Flock starts one when it has to
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

// Lock acquires an flock on a file, which it creates if it is missing. how is syscall.LOCK_SH or
// LOCK_EX. Closing the returned file releases the lock. Lock returns ErrBusy if ctx is done before
// the lock is acquired, and after MaxWait.
func Lock(ctx context.Context, path string, how int) (*os.File, error) {
	ctx = WithMaxWait(ctx)
	for {
		f, err := openLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock file: %w", err)
		}
		if err := Flock(ctx, f, how); err != nil {
			return nil, err
		}
		if IsAt(f, path) {
			return f, nil
		}
		f.Close() // removed or replaced while we waited: others lock another file now, so try again
	}
}

func openLock(path string) (*os.File, error) {
	f, err := Open(path, os.O_RDWR|os.O_CREATE)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		return Open(path, os.O_RDWR|os.O_CREATE)
	}
	return f, err
}

// pollLimit is the longest time for which Flock polls the lock. For a longer time it calls a
// blocking flock(2), which returns as soon as the lock is free, but cannot be interrupted: its
// thread remains until the lock is free, which may be never.
const pollLimit = 20 * time.Millisecond

// Flock locks an open file or directory. It waits until the deadline of ctx, see WithMaxWait. If
// Flock fails, it closes f: at once or, because a blocking flock(2) cannot be interrupted, as soon
// as the kernel grants the lock.
func Flock(ctx context.Context, f *os.File, how int) error {
	until, _ := ctx.Deadline()
	polls := time.Until(until) <= pollLimit
	err := flockEINTR(f, how|syscall.LOCK_NB)
	for polls && err == syscall.EWOULDBLOCK && time.Now().Before(until) {
		time.Sleep(min(time.Until(until), time.Millisecond/4))
		err = flockEINTR(f, how|syscall.LOCK_NB)
	}
	busy := fmt.Errorf("%w %s", ErrBusy, f.Name())
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
	return fmt.Errorf("lock: %w", err)
}

func flockEINTR(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

// IsAt reports whether the path still leads to the open file.
func IsAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err == nil && os.SameFile(open, now)
}
