package pin

import (
	"strconv"
	"time"
)

const (
	// memoryLife is for how long the node of an ended pod is remembered at most.
	memoryLife = 10 * time.Minute
	// publishLag is how long after a pod's end its last reservation may not have been published yet.
	publishLag = 30 * time.Second
	// startGrace is how long a bound pod may be without a sandbox before its end counts as a failed start.
	startGrace = 30 * time.Second
	// maxFailures is how many failed starts in a row suspend the pin to a node (DESIGN 7).
	maxFailures = 2
)

// A place is where a pod's addresses are.
type place struct {
	Node, NodeUID string // UID "" if only the name is known
	Addresses     string // "" if they are not known
	Remembered    bool   // nothing is published: the pod was seen there
	Released      bool   // not again for this reservation
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
}

// follow is what is remembered once a pod has ended at a moment, given what was remembered before it.
func (t trace) follow(p *podView, now time.Time) trace {
	if p.Node == "" {
		if p.Required && p.Pinned == t.Node {
			return trace{} // it waited for that node in vain
		}
		return t
	}
	next := trace{Node: p.Node, PodUID: string(p.UID), Addresses: p.Addresses, Started: p.Started, Evicted: p.Evicted,
		Ended: now, Until: now.Add(keep(p.Window))}
	if startFailed(p, now) {
		next.Failures = 1
		if t.Node == p.Node {
			next.Failures = t.Failures + 1
		}
	}
	return next
}

// startFailed tells whether a pod that has ended never got as far as a sandbox, though it had the time.
func startFailed(p *podView, now time.Time) bool {
	return !p.Started && (p.Failed || !p.BoundAt.IsZero() && now.Sub(p.BoundAt) >= startGrace)
}

// choose is where a pod's addresses are: the newest Bound, else the newest Held reservation that has not lapsed. What is
// remembered stands in where nothing is published, and wins for a moment over what other nodes have published before.
func choose(all []*reservation, last trace, now time.Time) (place, bool) {
	var best *reservation
	for _, r := range all {
		if r.GoingAway || !r.Bound && !r.Until.IsZero() && !r.Until.After(now) {
			continue
		}
		if best == nil || newer(r, best) {
			best = r
		}
	}
	remembered := last.Node != "" && now.Before(last.Until)
	switch {
	case best == nil && remembered,
		best != nil && remembered && best.Node != last.Node && last.Started && now.Sub(last.Ended) < publishLag:
		return place{Node: last.Node, Addresses: last.Addresses, Remembered: true}, true
	case best == nil:
		return place{}, false
	}
	return place{Node: best.Node, NodeUID: best.NodeUID, Addresses: best.Addresses, Released: best.Released}, true
}

// newer tells which of two reservations says where the pod was last: Bound before Held, then the later release, then the
// later write.
func newer(a, b *reservation) bool {
	if a.Bound != b.Bound {
		return a.Bound
	}
	since, before := heldSince(a), heldSince(b)
	if !a.Bound && !since.IsZero() && !before.IsZero() && !since.Equal(before) {
		return since.After(before)
	}
	return version(a) > version(b)
}

func heldSince(r *reservation) time.Time {
	if r.Until.IsZero() || r.Window <= 0 {
		return time.Time{}
	}
	return r.Until.Add(-r.Window)
}

// version orders the writes to objects of one kind.
func version(r *reservation) uint64 {
	v, _ := strconv.ParseUint(r.ResourceVersion, 10, 64)
	return v
}
