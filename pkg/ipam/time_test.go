package ipam

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const day = 24 * hour

// stepClock steps the wall clock, as NTP or a hand does.
func (w *world) stepClock(d time.Duration) { w.now.Wall = w.now.Wall.Add(d) }

// deadClock sets the wall clock to what a machine without a battery begins with.
func (w *world) deadClock() (right func()) {
	wrong := w.now.Wall.Sub(time.Unix(100, 0))
	w.stepClock(-wrong)
	return func() { w.stepClock(wrong) }
}

// kept is a pod whose address is held for a time, and another one that makes the calls.
func kept(t *testing.T, window time.Duration) *world {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.first = true
	w.add(ask{pod: "db-0", container: "c1", window: window})
	w.add(ask{pod: "web-0", container: "c2", uid: "u"})
	w.stop("c1")
	return w
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

func (w *world) isOver(story string) {
	w.t.Helper()
	w.same(story, w.add(ask{pod: "x", container: "x"}), "10.0.0.2")
}

// Within a boot the wall clock may say what it likes.
func TestAHoldOutlivesEveryStepOfTheClock(t *testing.T) {
	w := kept(t, hour)
	for _, step := range []time.Duration{25 * hour, -25 * hour, -30 * day, 400 * day, -370 * day} {
		w.stepClock(step)
		w.after(10 * time.Minute)
		w.isKept(step.String())
	}
	right := w.deadClock()
	w.isKept("1970")
	right()
	w.after(10 * time.Minute)
	w.isOver("after an hour")
}

// The clock is wrong for a while in the boot after the release, and is set right.
func TestAHoldOfAnEarlierBootOutlivesAStepOfTheClock(t *testing.T) {
	for story, step := range map[string]time.Duration{"ahead": 25 * hour, "behind": -25 * hour} {
		w := kept(t, 4*hour)
		w.after(hour)
		w.reboot() // takes a minute
		w.add(ask{pod: "web-0", container: "d2", uid: "u"})
		w.after(hour - time.Minute)
		w.stepClock(step)
		w.isKept(story)
		w.after(hour)
		w.isKept(story + ", an hour later")
		w.stepClock(-step)
		w.isKept(story + ", and back")
		w.after(hour - time.Second)
		w.isKept(story + ", a second before its end")
		w.after(time.Second)
		w.isOver(story)
	}
}

// A call may change a lease more than once. host-local's file says what came of it.
func TestAHoldThatIsOverAtABootLeavesNoFile(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	w.after(2 * hour)
	w.reboot()
	w.add(ask{pod: "web-0", container: "c2"})
	w.same("files", w.files(), "10.0.0.3=c2")
}

// An agent does it, where no ADD comes.
func TestTheCollectorOutlivesAStepOfTheClock(t *testing.T) {
	w := kept(t, 4*hour)
	w.reboot()
	w.expect(w.collect(), "rebase 10.0.0.2, release 10.0.0.3", "the first look of a boot")
	w.expect(w.collect(), "", "the second")
	w.stepClock(25 * hour)
	w.after(lease.BootHold)
	w.expect(w.collect(), "expire 10.0.0.3", "the cool-down of another is over")
	w.stepClock(-25 * hour)
	w.after(4*hour - lease.BootHold - 2*time.Minute)
	w.expect(w.collect(), "", "a minute before its end")
	w.after(time.Minute)
	w.expect(w.collect(), "expire 10.0.0.2", "its end")
}

// What was put off, and what has no end, stay what they are.
func TestOtherHoldsOfAnEarlierBoot(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", window: time.Duration(lease.Forever)})
	w.stop("c1")
	w.stop("c2")
	if err := w.service.Defer(context.Background(), w.refs("db-0"), 3*hour); err != nil {
		t.Fatal(err)
	}
	w.after(hour)
	w.reboot()
	w.refused(ask{pod: "x", container: "c3"}, ErrExhausted, "2 firmly held")
	w.stepClock(100 * day)
	if l := w.leaseOf("db-0"); !l.Deferred() || l.Remaining(w.now) != lease.Window(2*hour-time.Minute) {
		t.Errorf("put off until in 2 h: %v, %+v", l.Remaining(w.now), l)
	}
	if l := w.leaseOf("db-1"); l.Remaining(w.now) != lease.Forever {
		t.Errorf("%+v", l)
	}
	w.after(2*hour - time.Minute)
	w.same("over", w.add(ask{pod: "x", container: "c3"}), "10.0.0.2")
}

// A machine without a battery boots in 1970 and gets the time later. Nothing is lost, and nothing
// stays forever.
func TestTheClockIsAt1970AtBoot(t *testing.T) {
	w := kept(t, hour)
	w.after(30 * time.Minute)
	w.reboot()
	right := w.deadClock()
	w.add(ask{pod: "web-0", container: "d2", uid: "u"})
	w.after(10 * time.Minute)
	w.isKept("1970")
	right()
	w.isKept("the clock is right")
	w.after(40 * time.Minute)
	w.isKept("it began again at the boot")
	w.after(10 * time.Minute)
	w.isOver("an hour after the boot")

	// One that is released in 1970 is not 50 years old after the next boot.
	w = kept(t, hour)
	w.add(ask{pod: "db-0", container: "c3", window: hour})
	right = w.deadClock()
	w.stop("c3")
	w.after(time.Minute)
	right()
	w.reboot()
	w.add(ask{pod: "web-0", container: "d2", uid: "u"})
	w.isKept("released in 1970")
	w.after(hour)
	w.isOver("released in 1970")

	// Two boots in 1970, and then one with the right time: that counts from the release.
	w = kept(t, 4*hour)
	w.after(hour)
	for range 2 {
		w.reboot()
		right = w.deadClock()
		w.add(ask{pod: "web-0", container: "d" + w.now.BootID, uid: "u"})
		w.after(hour)
		w.isKept("a boot in 1970")
		right()
	}
	w.reboot()
	w.add(ask{pod: "web-0", container: "last", uid: "u"})
	w.isKept("the right time")
	w.after(hour - 3*time.Minute)
	w.isOver("four hours after the release")
}

// A clock that was a year ahead when the pod ended, and is right after the boot: the hold lasts for
// its window in that boot.
func TestAReleaseOfTheFuture(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.first = true
	w.add(ask{pod: "web-0", container: "c2", uid: "u"})
	w.stepClock(365 * day)
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	w.reboot()
	w.stepClock(-365 * day)
	w.same("the other pod", w.add(ask{pod: "web-0", container: "d2", uid: "u"}), "10.0.0.2")
	w.after(59 * time.Minute)
	w.refused(ask{pod: "x", container: "x"}, ErrExhausted, "1 firmly held")
	w.reboot()
	w.add(ask{pod: "web-0", container: "e2", uid: "u"})
	w.same("it began again once", w.add(ask{pod: "x", container: "x"}), "10.0.0.3")
}

// A year without a boot.
func TestAYearOfUptime(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.now.Boot = 365 * day
	w.add(ask{pod: "db-0", container: "c1", window: 200 * day})
	w.add(ask{pod: "db-1", container: "c2", window: time.Duration(lease.Forever)})
	w.stop("c1")
	w.stop("c2")
	w.after(199 * day)
	w.same("a day before its end", w.add(ask{pod: "db-0", container: "c3", window: 200 * day}), "10.0.0.2")
	w.refused(ask{pod: "db-0", container: "new", uid: "u2", window: 200 * day}, ErrAddressInUse)
	w.after(2 * time.Minute)
	w.same("busyTimeout", w.add(ask{pod: "db-0", container: "new", uid: "u2", window: 200 * day}), "10.0.0.4")
	w.stop("new")
	w.stop("c3")
	w.after(200 * day)
	w.same("over", w.add(ask{pod: "x", container: "c5"}), "10.0.0.2")
	w.same("forever", w.add(ask{pod: "db-1", container: "c6", window: time.Duration(lease.Forever)}), "10.0.0.3")
}

// busyTimeout counts by the boot's clock as well.
func TestBusyTimeoutOutlivesEveryStepOfTheClock(t *testing.T) {
	for _, step := range []time.Duration{25 * hour, -25 * hour} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(ask{pod: "db-0", container: "old", window: hour})
		again := ask{pod: "db-0", container: "new", uid: "u2", window: hour}
		w.refused(again, ErrAddressInUse)
		w.after(time.Minute)
		w.stepClock(step)
		w.refused(again, ErrAddressInUse)
		w.after(time.Minute)
		w.same(step.String(), w.add(again), "10.0.0.3")
	}
}

// The window of a spooled DEL began when it came, by the boot's clock.
func TestASpooledReleaseOutlivesAStepOfTheClock(t *testing.T) {
	for _, step := range []time.Duration{25 * hour, -25 * hour} {
		w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
		w.add(ask{pod: "db-0", container: "c1", window: hour})
		w.after(time.Second)
		if err := w.service.Store.Spool("c1", "eth0", w.service.Clock()); err != nil {
			t.Fatal(err)
		}
		w.burn("c1")
		w.stepClock(step)
		w.after(59 * time.Minute)
		w.refused(ask{pod: "x", container: "x"}, ErrExhausted, "1 firmly held")
		w.after(time.Minute)
		w.same(step.String(), w.add(ask{pod: "x", container: "x"}), "10.0.0.2")
	}
}

// A full pool asks every process at most every lookEvery, and not for a year after a step of the
// clock.
func TestALookAtTheDeadOutlivesAStepOfTheClock(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "a", container: "c1"})
	w.add(ask{pod: "b", container: "c2"})
	w.refused(ask{pod: "x", container: "x"}, ErrExhausted)
	w.burn("c1")
	w.stepClock(-365 * day)
	_, err := w.tryAdd(ask{pod: "x", container: "x"})
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "2 bound") {
		t.Errorf("too early: %v", err)
	}
	w.after(lookEvery)
	w.same("later", w.add(ask{pod: "x", container: "x"}), "10.0.0.2")
}
