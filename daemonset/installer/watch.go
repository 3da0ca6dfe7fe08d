package main

import (
	"context"
	"log/slog"
	"os"
	"time"
)

const (
	// pollEvery is how often a watch looks.
	pollEvery = time.Second
	// settle is how long host-local must not have changed before it is replaced, so that a copy
	// that is being written is complete; unsettled is how long a watch waits for that.
	settle    = 2 * time.Second
	unsettled = 20 * time.Second
	// longestWait bounds the time between two replacements.
	longestWait = 5 * time.Minute
	// calm is the time without a replacement after which the next one does not wait longer.
	calm = 10 * time.Minute
)

// watcher keeps the program in host-local's place. Where it is overwritten again and again, another
// program restores host-local too: each time, the watcher waits twice as long as before, and says
// so.
type watcher struct {
	bin     bin
	program *os.File
	log     *slog.Logger

	own     stamp     // of host-local when it was known to be the program
	foreign time.Time // when it was first seen to be another one, zero while it is not
	seen    stamp     // of host-local at the last look
	since   time.Time // when it became what was seen
	done    time.Time // the last replacement
	wait    time.Duration
	again   int    // replacements, none of them calm after the one before
	failure string // the last error, logged once
}

// run watches until the context is done.
func (w *watcher) run(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		w.step(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// step looks once, and replaces host-local if it is time to.
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

// report logs a replacement and determines how long the next one waits.
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

// stampAt returns the stamp of a path, the zero one if there is nothing or it cannot be read.
func stampAt(path string) stamp {
	info, err := os.Lstat(path)
	if err != nil {
		return stamp{}
	}
	return stampOf(info)
}
