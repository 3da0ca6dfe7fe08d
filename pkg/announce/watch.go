package announce

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// How often the queue is read without an event. unwatched applies where inotify cannot be used: the
// kernel allows each user 128 instances by default.
const (
	watched   = 5 * time.Second
	unwatched = 25 * time.Millisecond
)

// watch waits for changes of the queue.
type watch struct {
	dir string
	log *slog.Logger

	watcher *fsnotify.Watcher // nil: the queue is polled
	failed  bool              // and that was logged
}

// renew makes sure that the queue exists and is watched. Both may have ended since: somebody may
// have removed the directory.
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
