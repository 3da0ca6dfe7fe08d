package store

import (
	"context"
	"os"
)

// A Pause keeps a process from taking the store's lock while it may not have enough processor time
// to release it soon. Both functions may be called concurrently.
type Pause interface {
	// Wait waits until the process has the time, and reports whether it has. It reports false after
	// a limit of its own, or if ctx is done.
	Wait(ctx context.Context) bool
	// Over reports whether the process has the time.
	Over() bool
}

// lockTries is how often a process takes the lock that, when it gets it, has no time any more. It
// may wait for the lock for long, and something else in it may use the time meanwhile.
const lockTries = 3

// take locks the store's lock file, after a Pause, which may be nil.
func (s *Store) take(ctx context.Context, p Pause, how int) (*os.File, error) {
	for try := 1; ; try++ {
		paused := p != nil && p.Wait(ctx)
		f, err := acquire(ctx, s.lock(), how)
		if err != nil || !paused || p.Over() || try == lockTries {
			return f, err
		}
		f.Close()
	}
}
