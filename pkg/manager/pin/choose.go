package pin

import (
	"strconv"
	"time"
)

const (
	// memoryLife is for how long it is remembered at most what became of a pod.
	memoryLife = 10 * time.Minute
	// publishLag is how long after a pod's end its last reservation may not have been published yet. An agent needs a
	// second; this is for one that is being replaced.
	publishLag = 30 * time.Second
	// startGrace is how long a bound pod may be without a sandbox before its end counts as a failed start.
	startGrace = 30 * time.Second
	// maxFailures is how many failed starts in a row suspend the pin to a node (docs/design.md,
	// "Modes").
	maxFailures = 2
)

// A place is where a pod's addresses are.
type place struct {
	Node, NodeUID string // UID "" if only the name is known
	Addresses     string // "" if they are not known
	Remembered    bool   // nothing is published: the pod was seen there
	Abandoned     bool   // not again for this reservation
}

// A trace is what is remembered of a pod's last instance on a node.
type trace struct {
	Node      string
	PodUID    string
	Addresses string
	Started   bool // it had a sandbox
	Evicted   bool // by the eviction API
	Failures  int  // failed starts in a row on this node
	Ended     time.Time
	Until     time.Time // when this is forgotten
	Lost      string    // the UID of the last pod whose reservation was deleted
}

// follow is what is remembered once a pod has ended at a moment, given what was remembered before it.
func (t trace) follow(p *podView, now time.Time) trace {
	if p.Node == "" {
		if p.Required && p.Pinned == t.Node {
			return trace{} // it waited for that node without effect
		}
		return t
	}
	next := trace{Node: p.Node, PodUID: string(p.UID), Addresses: p.Addresses, Started: p.Started, Evicted: p.Evicted,
		Ended: now, Until: now.Add(keep(p.Window)), Lost: t.Lost}
	if startFailed(p, now) {
		next.Failures = 1
		if t.Node == p.Node {
			next.Failures = t.Failures + 1
		}
	}
	return next
}

// startFailed reports whether a pod that has ended never got as far as a sandbox, though it had the
// time.
func startFailed(p *podView, now time.Time) bool {
	return !p.Started && (p.Failed || !p.BoundAt.IsZero() && now.Sub(p.BoundAt) >= startGrace)
}

// unpublished reports whether a pod that ended a moment ago may have addresses on its node that are
// not published yet.
func (t trace) unpublished(now time.Time) bool {
	return t.Node != "" && (t.Lost == "" || t.Lost != t.PodUID) && now.Before(t.Until) && now.Sub(t.Ended) < publishLag
}

// choose is where a pod's addresses are: the newest reservation that has not lapsed. What is remembered stands in where
// nothing is published yet, and wins for a moment over what other nodes have published before.
func choose(all []*reservation, last trace, now time.Time) (place, bool) {
	var best *reservation
	remembered := last.unpublished(now)
	for _, r := range all {
		if r.GoingAway {
			remembered = remembered && r.Node != last.Node
			continue
		}
		if !r.Bound && !r.Until.IsZero() && !r.Until.After(now) {
			continue
		}
		if best == nil || newer(r, best, last.PodUID) {
			best = r
		}
	}
	switch {
	case best == nil && remembered,
		best != nil && remembered && best.Node != last.Node && last.Started:
		return place{Node: last.Node, Addresses: last.Addresses, Remembered: true}, true
	case best == nil:
		return place{}, false
	}
	return place{Node: best.Node, NodeUID: best.NodeUID, Addresses: best.Addresses, Abandoned: best.Abandoned}, true
}

// newer reports whether a says more than b of where the pod was last. One that was
// abandoned says least, and that of the pod's last instance most; then the later release counts, or
// the later write. That one is Bound says nothing: it stays so for as long as the object of a node
// that died.
func newer(a, b *reservation, last string) bool {
	if a.Abandoned != b.Abandoned {
		return b.Abandoned
	}
	if a, b := a.PodUID == last, b.PodUID == last; last != "" && a != b {
		return a
	}
	since, before := heldSince(a), heldSince(b)
	if !since.IsZero() && !before.IsZero() && !since.Equal(before) {
		return since.After(before)
	}
	return version(a) > version(b)
}

// heldSince is when a hold began; zero if that is not known, or if it is none.
func heldSince(r *reservation) time.Time {
	if r.Bound || r.Until.IsZero() || r.Window <= 0 {
		return time.Time{}
	}
	return r.Until.Add(-r.Window)
}

// version orders the writes to objects of one kind.
func version(r *reservation) uint64 {
	v, _ := strconv.ParseUint(r.ResourceVersion, 10, 64)
	return v
}
