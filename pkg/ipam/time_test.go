package ipam

import (
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// stepClock steps the wall clock, as NTP or a hand does.
func (w *world) stepClock(d time.Duration) { w.now.Wall = w.now.Wall.Add(d) }

// deadClock sets the wall clock to what a machine without a battery begins with.
func (w *world) deadClock() (right func()) {
	wrong := w.now.Wall.Sub(time.Unix(100, 0))
	w.stepClock(-wrong)
	return func() { w.stepClock(wrong) }
}

// isKept expects that the address is not given to others, by the plugin or the collector, and
// isOver that it is.
func (w *world) isKept(story string) {
	w.t.Helper()
	w.collect()
	w.refused(ask{pod: "x", container: "x"}, ErrExhausted)
	if l := w.leaseOf("db-0"); l.State != lease.Held || !l.Firm {
		w.t.Errorf("%s: %+v", story, l)
	}
}
