package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/leasehold-cni/leasehold/pkg/signal"
)

const (
	// settle is how long writes are gathered into one signal: one ADD writes
	// several pages, and several ADDs come together.
	settle = 100 * time.Millisecond
	// slowPoll is how often there is a signal without any sign of a change, for
	// where the kernel tells nothing.
	slowPoll = 30 * time.Second
)

// Changes tells tasks that the store may have changed: soon after every write,
// and every slowPoll. Nothing is said about what has changed, and a signal that
// nobody takes is not repeated: whoever gets one looks at all of it.
//
// One watch serves all: a user has few of them (fs.inotify.max_user_instances).
type Changes struct {
	dir    string
	log    *slog.Logger
	signal signal.Signal
	files  *fsnotify.Watcher // nil while the directory cannot be watched
	said   bool              // that it cannot
}

// NewChanges returns the watch of a store's state directory; Run keeps it.
func NewChanges(stateDir string, log *slog.Logger) *Changes {
	return &Changes{dir: stateDir, log: log}
}

// Subscribe returns a channel that gets a word at every signal; never closed.
func (c *Changes) Subscribe() <-chan struct{} { return c.signal.Subscribe() }

// Run watches until ctx is done.
func (c *Changes) Run(ctx context.Context) error {
	poll := time.NewTicker(slowPoll)
	defer poll.Stop()
	var settled <-chan time.Time
	c.watch()
	defer c.unwatch()
	c.signal.Send() // for what was written before
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
			c.log.Debug("watching the store", "error", err)
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

// watch watches the directory, for the file in it may be replaced. It makes one
// where there is none, or the first pods of a new node would be seen late. Where
// that fails it is tried again at the next poll.
func (c *Changes) watch() {
	if c.files != nil {
		return
	}
	files, err := fsnotify.NewWatcher()
	if err == nil {
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			c.log.Debug("the store has no directory", "error", err)
		}
		if err = files.Add(c.dir); err == nil {
			c.files, c.said = files, false
			return
		}
		files.Close()
	}
	if !c.said {
		c.said = true
		c.log.Warn("the store cannot be watched: what changes is noticed late", "dir", c.dir, "every", slowPoll, "error", err)
	}
}

func (c *Changes) unwatch() {
	if c.files != nil {
		c.files.Close()
		c.files = nil
	}
}
