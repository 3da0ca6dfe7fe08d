package announce

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How often the queue is looked at: for what no event tells, and where there are
// no events, for a node has only so many inotify instances (128 by default).
const (
	slowly  = 5 * time.Second
	quickly = 25 * time.Millisecond
)

// watch tells when to look at the queue.
type watch struct {
	dir string
	log *slog.Logger

	watcher *fsnotify.Watcher // nil: nothing tells
	failed  bool              // and that was said
}

// renew makes sure that there is a queue, and that its events come: it may have
// been removed.
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
			w.log.Warn("the announce queue cannot be watched; it is looked at again and again", "error", err)
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

// wait returns when there may be something new; false if ctx is done.
func (w *watch) wait(ctx context.Context) bool {
	if w.watcher == nil {
		return pause(ctx, quickly)
	}
	poll := time.NewTimer(slowly)
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return false
	case err := <-w.watcher.Errors:
		w.log.Warn("events of the announce queue were lost", "error", err)
	case <-w.watcher.Events:
	case <-poll.C:
	}
	return true
}
