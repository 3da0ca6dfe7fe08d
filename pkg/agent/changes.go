package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long writes are gathered into one signal: one ADD writes
	// several pages, and several ADDs come together.
	settle = 100 * time.Millisecond
	// slowPoll is how often there is a signal without any sign of a change, for
	// where the kernel tells nothing.
	slowPoll = 30 * time.Second
)

// Changes signals that the store may have changed: at once, soon after every
// write, and every slowPoll. Nothing is said about what has changed, and a signal
// that nobody takes is not repeated: whoever gets one looks at all of it. The
// channel is never closed.
func Changes(ctx context.Context, stateDir string, log *slog.Logger) <-chan struct{} {
	w := &watcher{dir: stateDir, log: log, out: make(chan struct{}, 1)}
	w.signal()
	go w.run(ctx)
	return w.out
}

type watcher struct {
	dir   string
	log   *slog.Logger
	out   chan struct{}
	files *fsnotify.Watcher // nil while the directory cannot be watched
}

func (w *watcher) signal() {
	select {
	case w.out <- struct{}{}:
	default: // one is waiting
	}
}

func (w *watcher) run(ctx context.Context) {
	poll := time.NewTicker(slowPoll)
	defer poll.Stop()
	var settled <-chan time.Time
	w.watch()
	defer w.unwatch()
	for {
		var events <-chan fsnotify.Event
		var errs <-chan error
		if w.files != nil {
			events, errs = w.files.Events, w.files.Errors
		}
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if e.Name == w.dir { // removed, or moved away
				w.unwatch()
			}
			if filepath.Base(e.Name) == "leases.db" && settled == nil {
				settled = time.After(settle)
			}
		case err := <-errs: // events may be missing
			w.log.Debug("watching the store", "error", err)
			w.signal()
		case <-settled:
			settled = nil
			w.signal()
		case <-poll.C:
			w.watch()
			w.signal()
		}
	}
}

// watch watches the directory, for the file in it may be replaced. It makes one
// where there is none, or the first pods of a new node would be seen late. Where
// that fails it is tried again at the next poll.
func (w *watcher) watch() {
	if w.files != nil {
		return
	}
	files, err := fsnotify.NewWatcher()
	if err == nil {
		if err := os.MkdirAll(w.dir, 0o700); err != nil {
			w.log.Debug("the store has no directory", "error", err)
		}
		if err = files.Add(w.dir); err == nil {
			w.files = files
			return
		}
		files.Close()
	}
	w.log.Debug("the store cannot be watched yet", "dir", w.dir, "error", err)
}

func (w *watcher) unwatch() {
	if w.files != nil {
		w.files.Close()
		w.files = nil
	}
}
