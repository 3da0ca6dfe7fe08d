package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/rundir"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// mergeDelay is the time from the first write to the signal. All writes within that time cause
	// one signal: one ADD writes several pages, and ADDs come in bursts.
	mergeDelay = 100 * time.Millisecond
	// pollInterval is the time between two signals that are sent without a write, in case events of
	// the file system are lost or the directory cannot be watched.
	pollInterval = 30 * time.Second
)

// Changes signals to tasks that the store may have changed: shortly after every write and every
// queued DEL, and every pollInterval. It also signals changes of the announce queue, at once. A
// signal carries no data, and signals that a task has not received yet are merged into one. The
// task must read the store, or the queue, to find what has changed.
//
// All tasks share one watch of the file system, because the number of watches per user is limited
// (fs.inotify.max_user_instances).
type Changes struct {
	Store daemon.Signal // the store may have changed
	Queue daemon.Signal // the announce queue has changed

	dir    string // of the store
	dels   string // of queued DELs
	queue  string // of announcements
	log    *slog.Logger
	files  *fsnotify.Watcher // nil while there is none
	failed daemon.Problem    // of the watch
}

// NewChanges returns the Changes of the store in dirs. There are no signals until Run is called.
func NewChanges(dirs store.Dirs, log *slog.Logger) *Changes {
	run := rundir.Dir{Path: dirs.Run}
	return &Changes{dir: dirs.State, dels: run.Queue(), queue: run.Announcements(), log: log}
}

// Run watches the store and sends signals until ctx is done. It sends the first one at once. It
// returns ctx.Err().
func (c *Changes) Run(ctx context.Context) error {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	var merged <-chan time.Time
	c.watch()
	defer func() {
		if c.files != nil {
			c.files.Close()
		}
	}()
	c.Store.Send() // for changes before the start
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
			if filepath.Dir(e.Name) == c.queue {
				c.Queue.Send()
			}
			isDEL := filepath.Dir(e.Name) == c.dels && e.Has(fsnotify.Create)
			if (filepath.Base(e.Name) == "leases.db" || isDEL) && merged == nil {
				merged = time.After(mergeDelay)
			}
		case err := <-errs: // events may be missing
			c.log.Debug("events of the store lost", "error", err)
			c.Store.Send()
		case <-merged:
			merged = nil
			c.Store.Send()
		case <-poll.C:
			c.watch()
			c.Store.Send()
		}
	}
}

// watch watches the directories, and not the file of the store, because the file may be replaced.
// It creates directories that are missing, so that the first lease of a new node causes a signal.
// Run repeats it after pollInterval: a directory that is watched already stays so, and the watch of
// one that was removed or renamed has ended.
func (c *Changes) watch() {
	var err error
	if c.files == nil {
		c.files, err = fsnotify.NewWatcher()
	}
	if err == nil {
		for _, dir := range []string{c.dir, c.dels, c.queue} {
			err = errors.Join(err, os.MkdirAll(dir, 0o700), c.files.Add(dir))
		}
	}
	if err != nil {
		err = fmt.Errorf("changes are noticed after up to %s: %w", pollInterval, err)
	}
	c.failed.Log(c.log, slog.LevelWarn, "watching the store", err)
}
