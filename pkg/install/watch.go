package install

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

const (
	// pollEvery is the interval at which a watcher examines host-local.
	pollEvery = time.Second
	// settle is how long host-local must have been unchanged before it is replaced. Otherwise a
	// program might still be writing the file.
	settle = 2 * time.Second
	// longestWait is the longest time between two replacements.
	longestWait = 5 * time.Minute
	// calm is the time without a replacement after which the next one is as soon as the first.
	calm = 10 * time.Minute
)

// watcher replaces host-local with the program whenever another program has installed host-local
// again. If another program does that repeatedly, two programs compete for the file. Then the
// watcher doubles the time between two replacements each time.
type watcher struct {
	dir     Dir
	program *os.File
	log     *slog.Logger

	own     stamp         // of host-local after the last call of replace that succeeded
	seen    stamp         // of host-local in the last step
	since   time.Time     // when host-local was first seen with that stamp
	done    time.Time     // of the last replacement
	wait    time.Duration // between done and the next replacement
	failure string        // the last error, logged once
}

// Watch replaces host-local with the program, which is leasehold's plugin, whenever it is installed
// again, until ctx is done.
func (d Dir) Watch(ctx context.Context, program *os.File, log *slog.Logger) {
	w := watcher{dir: d, program: program, log: log}
	for w.step(time.Now()); notify.Wait(ctx, nil, pollEvery); {
		w.step(time.Now())
	}
}

// step examines host-local once, and replaces it if it is another file and the wait is over.
func (w *watcher) step(now time.Time) {
	current := stampAt(w.dir.path(hostLocal))
	if current != w.seen || w.since.IsZero() {
		w.seen, w.since = current, now
	}
	isOwn := current == w.own && current != (stamp{})
	if isOwn || now.Sub(w.since) < settle || now.Sub(w.done) < w.wait {
		return
	}
	replaced, err := w.dir.Replace(w.program)
	if err != nil {
		if err.Error() != w.failure {
			w.log.Error("replacing host-local failed", "directory", string(w.dir), "error", err)
		}
		w.failure, w.since = err.Error(), now
		return
	}
	w.failure, w.own = "", stampAt(w.dir.path(hostLocal))
	if !replaced {
		return
	}
	if w.wait = min(2*w.wait, longestWait); now.Sub(w.done) >= calm {
		w.wait = settle
	}
	w.done = now
	w.log.Warn("host-local was overwritten and has been replaced; if this repeats, another program installs it too",
		"directory", string(w.dir), "nextNotBefore", w.wait)
}

// stampAt returns the stamp of a path. It returns the zero stamp if nothing is there or it could
// not be read.
func stampAt(path string) stamp {
	info, err := os.Lstat(path)
	if err != nil {
		return stamp{}
	}
	return stampOf(info)
}
