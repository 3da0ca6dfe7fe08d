package pin

import (
	"strconv"
	"time"
)

const (
	// maxMemory is how long at most a pod that has ended is remembered.
	maxMemory = 10 * time.Minute
	// publishLag is how long after a pod's end its last reservation may not have been published
	// yet. An agent needs a second; this is for one that is being replaced.
	publishLag = 30 * time.Second
	// startGrace is how long a bound pod may be without a sandbox before its end counts as a failed
	// start.
	startGrace = 30 * time.Second
	// maxFailures is how many failed starts in a row suspend the pin to a node (docs/design.md,
	// "Modes").
	maxFailures = 2
)

// A pinTarget is the node that has a pod's addresses.
type pinTarget struct {
	Node, NodeUID string // UID "" if only the name is known
	Addresses     string // "" if they are not known
	Remembered    bool   // there is no reservation yet: the manager saw the last pod there
	Abandoned     bool   // an earlier pod waited for this reservation and was evicted
}

// An instance is what the manager remembers of the last pod with a name that was bound to a node.
type instance struct {
	Node      string
	PodUID    string
	Addresses string
	Started   bool // the pod had a sandbox
	Evicted   bool // the eviction API deleted the pod
	Failures  int  // failed starts in a row on this node
	Ended     time.Time
	Created   time.Time // when the API server created the pod
	Until     time.Time // when this is forgotten
	Lost      podOnNode // whose reservation was deleted last
}

// A podOnNode is a pod, by its UID, and a node.
type podOnNode struct{ UID, Node string }

// after returns the instance to remember after a pod has ended. t is the instance before.
func (t instance) after(p *podView, now time.Time) instance {
	if p.Node == "" {
		if p.Required && p.Pinned == t.Node {
			return instance{} // the pod was required to run on that node, but did not get there
		}
		return t
	}
	next := instance{Node: p.Node, PodUID: string(p.UID), Addresses: p.Addresses, Started: p.Started,
		Evicted: p.Evicted, Created: p.CreationTimestamp.Time,
		Ended: now, Until: now.Add(rememberFor(p.Window)), Lost: t.Lost}
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

// unpublished reports whether the pod ended less than publishLag ago, so that it may have addresses
// on its node for which no reservation is published yet.
func (t instance) unpublished(now time.Time) bool {
	released := t.Lost == podOnNode{t.PodUID, t.Node}
	return t.Node != "" && !released && now.Before(t.Until) && now.Sub(t.Ended) < publishLag
}

// contradicts reports whether what the API server showed of a pod contradicts a reservation: the
// pod ran on another node, or the reservation was first published after the pod was created, by a
// node that the pod was not on. Such a reservation is not counted, because a compromised node may
// publish any.
func (t instance) contradicts(r *reservation) bool {
	if t.Node == "" || r.Node == t.Node {
		return false
	}
	return r.PodUID != "" && r.PodUID == t.PodUID ||
		t.Started && !t.Created.IsZero() && r.CreationTimestamp.After(t.Created)
}

// choose returns the node of a pod's newest reservation whose window has not ended and that nothing
// contradicts. all are the reservations of the pod's name, last is the remembered instance. For
// publishLag after the end of the last pod, choose returns the node of that pod if there is no
// reservation, or only reservations of other nodes. It reports false if it finds no node.
func choose(all []*reservation, last instance, now time.Time) (pinTarget, bool) {
	var best *reservation
	remembered := last.unpublished(now)
	for _, r := range all {
		if r.Releasing {
			remembered = remembered && r.Node != last.Node
			continue
		}
		if !r.Bound && !r.Until.IsZero() && !r.Until.After(now) || last.contradicts(r) {
			continue
		}
		if best == nil || preferable(r, best, last.PodUID) {
			best = r
		}
	}
	switch {
	case best == nil && remembered,
		best != nil && remembered && best.Node != last.Node && last.Started:
		return pinTarget{Node: last.Node, Addresses: last.Addresses, Remembered: true}, true
	case best == nil:
		return pinTarget{}, false
	}
	return pinTarget{Node: best.Node, NodeUID: best.NodeUID, Addresses: best.Addresses, Abandoned: best.Abandoned}, true
}

// preferable reports whether a is preferable to b. An abandoned reservation comes last, and that of
// the pod's last instance first. Where that is not known, the later hold counts, or the later
// write: a pod that was admitted while there was no manager has no label, and the manager has not
// seen where it ran. The state Bound does not count: the reservation of a node that died keeps it
// for as long as the object exists.
func preferable(a, b *reservation, last string) bool {
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

// heldSince returns when a hold began; zero if that is not known, or if it is not a hold.
func heldSince(r *reservation) time.Time {
	if r.Bound || r.Until.IsZero() || r.Window <= 0 {
		return time.Time{}
	}
	return r.Until.Add(-time.Duration(r.Window))
}

// version returns a number that grows with each write to objects of one kind.
func version(r *reservation) uint64 {
	v, _ := strconv.ParseUint(r.ResourceVersion, 10, 64)
	return v
}
