package announce

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// The longest time between two readings of the queue. watched is a fallback for lost events.
// unwatched applies if inotify cannot be used: by default the kernel allows each user 128
// instances.
const (
	watched   = 5 * time.Second
	unwatched = 25 * time.Millisecond
)

// watch waits for changes of the queue.
type watch struct {
	dir string
	log *slog.Logger

	watcher *fsnotify.Watcher // nil while the queue is polled
	failed  bool              // the last renew failed, which was logged
}

// renew creates the queue's directory and watches it, if it was removed or is not watched.
func (w *watch) renew() {
	err := os.MkdirAll(w.dir, 0o700)
	if err == nil && w.watcher == nil {
		w.watcher, err = fsnotify.NewWatcher()
	}
	if err == nil {
		err = w.watcher.Add(w.dir)
	}
	if err != nil {
		w.close()
		if !w.failed {
			w.log.Warn("watching the announce queue failed, polling it", "error", err)
		}
	}
	w.failed = err != nil
}

func (w *watch) close() {
	if w.watcher != nil {
		w.watcher.Close()
		w.watcher = nil
	}
}

// wait returns when the queue may have changed. It reports false if ctx is done.
func (w *watch) wait(ctx context.Context) bool {
	if w.watcher == nil {
		return notify.Wait(ctx, nil, unwatched)
	}
	poll := time.NewTimer(watched)
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return false
	case err := <-w.watcher.Errors:
		w.log.Warn("events of the announce queue lost", "error", err)
	case <-w.watcher.Events:
	case <-poll.C:
	}
	return true
}
