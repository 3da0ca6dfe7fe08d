package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

const (
	// settle is how long writes are collected into one signal: one ADD writes several pages, and
	// ADDs come in bursts.
	settle = 100 * time.Millisecond
	// pollInterval is how often a signal is sent without an event, in case events are lost or the
	// directory cannot be watched.
	pollInterval = 30 * time.Second
)

// Changes signals tasks that the store may have changed: soon after every write, and every
// pollInterval. A signal carries no data, and one that is not received is not repeated: the
// receiver reads the whole store.
//
// All tasks share one watch, because the number of watches per user is limited
// (fs.inotify.max_user_instances).
type Changes struct {
	dir    string
	log    *slog.Logger
	poll   time.Duration
	signal notify.Signal
	files  *fsnotify.Watcher // nil while the directory cannot be watched
	logged bool              // that it cannot be watched
}

// NewChanges returns the Changes of a store's state directory. Run watches it.
func NewChanges(stateDir string, log *slog.Logger) *Changes {
	return &Changes{dir: stateDir, log: log, poll: pollInterval}
}

// Subscribe returns a channel that receives every signal. It is never closed.
func (c *Changes) Subscribe() <-chan struct{} { return c.signal.Subscribe() }

// Run watches until ctx is done.
func (c *Changes) Run(ctx context.Context) error {
	poll := time.NewTicker(c.poll)
	var settled <-chan time.Time
	c.watch()
	defer c.unwatch()
	c.signal.Send() // for changes before the start
	for {
		var events <-chan fsnotify.Event
		var errs <-chan error
		if c.files != nil {
			events, errs = c.files.Events, c.files.Errors
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-events:
			if e.Name == c.dir { // removed, or moved away
				c.unwatch()
			}
			if filepath.Base(e.Name) == "leases.db" && settled == nil {
				settled = time.After(settle)
			}
		case err := <-errs: // events may be missing
			c.log.Debug("events of the store lost", "error", err)
			c.signal.Send()
		case <-settled:
			settled = nil
			c.signal.Send()
		case <-poll.C:
			c.watch()
			c.signal.Send()
		}
	}
}

// watch watches the directory rather than the file, which may be replaced. It creates a missing
// directory, so that the first lease of a new node is noticed at once. If it fails it is retried at
// the next poll.
func (c *Changes) watch() {
	if c.files != nil {
		return
	}
	files, err := fsnotify.NewWatcher()
	if err == nil {
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			c.log.Debug("creating the store's directory failed", "error", err)
		}
		if err = files.Add(c.dir); err == nil {
			c.files, c.logged = files, false
			return
		}
		files.Close()
	}
	if !c.logged {
		c.logged = true
		c.log.Warn("watching the store failed, changes are noticed late", "dir", c.dir, "pollInterval", c.poll,
			"error", err)
	}
}

func (c *Changes) unwatch() {
	if c.files != nil {
		c.files.Close()
		c.files = nil
	}
}
