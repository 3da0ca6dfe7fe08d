package main

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
	// program might still be writing the file. After unsettled, a file that keeps changing is
	// replaced nevertheless.
	settle    = 2 * time.Second
	unsettled = 20 * time.Second
	// longestWait is the longest time that a watcher waits before a replacement.
	longestWait = 5 * time.Minute
	// calm is the time without a replacement after which the wait before the next one is the
	// shortest again.
	calm = 10 * time.Minute
)

// watcher replaces host-local with the program whenever another program has installed host-local
// again. If another program does that repeatedly, two programs compete for the file. Then the
// watcher doubles the wait before each replacement, and logs a warning.
type watcher struct {
	bin     bin
	program *os.File
	log     *slog.Logger

	own     stamp         // of host-local after the last call of replace that succeeded
	foreign time.Time     // when host-local was first seen to be another file, zero while it is the program
	seen    stamp         // of host-local in the last step
	since   time.Time     // when host-local was first seen with that stamp
	done    time.Time     // of the last replacement
	wait    time.Duration // between foreign and the replacement
	again   int           // number of replacements since the last calm period
	failure string        // the last error, logged once
}

// run calls step every pollEvery until ctx is done.
func (w *watcher) run(ctx context.Context) {
	for w.step(time.Now()); notify.Wait(ctx, nil, pollEvery); {
		w.step(time.Now())
	}
}

// step examines host-local once, and replaces it if it is another file and the wait is over.
func (w *watcher) step(now time.Time) {
	current := stampAt(w.bin.path(hostLocal))
	if current != w.seen {
		w.seen, w.since = current, now
	}
	if current == w.own && current != (stamp{}) {
		w.foreign = time.Time{}
		return
	}
	if w.foreign.IsZero() {
		w.foreign = now
		if now.Sub(w.done) >= calm {
			w.wait, w.again = settle, 0
		}
	}
	settled := now.Sub(w.since) >= settle || now.Sub(w.foreign) >= unsettled
	if now.Sub(w.foreign) < w.wait || !settled {
		return
	}
	replaced, err := w.bin.replace(w.program)
	if err != nil {
		if err.Error() != w.failure {
			w.log.Error("replacing host-local failed", "directory", string(w.bin), "error", err)
		}
		w.failure, w.foreign = err.Error(), now
		return
	}
	w.failure, w.foreign, w.own = "", time.Time{}, stampAt(w.bin.path(hostLocal))
	if replaced {
		w.report(now)
	}
}

// report logs a replacement, and sets the wait before the next one.
func (w *watcher) report(now time.Time) {
	w.done = now
	w.again++
	if w.again == 1 {
		w.log.Warn("host-local was overwritten and has been replaced", "directory", string(w.bin))
		return
	}
	w.wait = min(2*w.wait, longestWait)
	w.log.Warn("host-local was overwritten again and has been replaced; another program may install it too",
		"directory", string(w.bin), "times", w.again, "nextAfter", w.wait)
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
