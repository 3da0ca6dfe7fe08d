package pin

import (
	"cmp"
	"time"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

const (
	// maxMemory is the longest time for which the manager remembers a pod that has ended.
	maxMemory = 10 * time.Minute
	// publishLag is how long the agent may take to publish the reservation of a pod after the pod
	// has ended. A running agent needs a second. publishLag is enough for an agent that is being
	// replaced.
	publishLag = 30 * time.Second
	// startGrace is the time after which a bound pod should have a sandbox. If a pod ends after
	// that time and never had a sandbox, its start has failed.
	startGrace = 30 * time.Second
	// maxFailures is the number of successive failed starts on a node after which pods of that name
	// are no longer pinned to the node (docs/design.md, "Modes").
	maxFailures = 2
)

// A pinTarget is the node that has the former addresses of a pod.
type pinTarget struct {
	Node       string
	Addresses  string // "" if not known
	Expected   string // the addresses as in policy.ExpectedAddresses
	Remembered bool   // the node has no reservation yet, but the manager saw the last pod there
	HasStrike  bool   // an earlier pod did not get onto the node
	Taken      bool   // of a reservation name: as many pods were sent there as the node has addresses
	Last       instance
}

// An instance is what the manager remembers of the last pod with a given name that was bound to a
// node. Later pods with the name have other UIDs. The zero value means that nothing is remembered.
type instance struct {
	Node      string
	PodUID    string
	Addresses string
	Started   bool // the pod had addresses, so its sandbox was created
	Evicted   bool // the eviction API deleted the pod
	Failures  int  // number of successive failed starts on this node
	Ended     time.Time
	Created   time.Time // when the API server created the pod
	Until     time.Time // when the manager forgets the instance
	Lost      podOnNode // the pod and node of the reservation that was deleted last
}

// A podOnNode is the UID of a pod and the name of a node.
type podOnNode struct{ UID, Node string }

// after returns the instance to remember after the pod p has ended. t is the instance that was
// remembered until then. If p was bound to a node, the new instance is p, with the number of
// successive failed starts on that node. It is remembered as long as the window of p, because the
// addresses are not held longer, and at most maxMemory.
//
// If p was never bound to a node, t stays.
func (t instance) after(p *podView, now time.Time) instance {
	if p.Node == "" {
		return t
	}
	next := instance{Node: p.Node, PodUID: string(p.UID), Addresses: p.Addresses, Started: p.Started,
		Evicted: p.Evicted, Created: p.CreationTimestamp.Time,
		Ended: now, Until: now.Add(min(time.Duration(p.Window), maxMemory)), Lost: t.Lost}
	if startFailed(p, now) {
		next.Failures = 1
		if t.Node == p.Node {
			next.Failures = t.Failures + 1
		}
	}
	return next
}

// startFailed reports whether the start of a pod that has ended has failed: the pod had no sandbox,
// although its phase is Failed or it was bound for startGrace.
func startFailed(p *podView, now time.Time) bool {
	return !p.Started && (p.Failed || !p.BoundAt.IsZero() && now.Sub(p.BoundAt) >= startGrace)
}

// unpublished reports whether the pod ended less than publishLag ago. If so, its node may have
// addresses for the name although their reservation is not published yet. unpublished reports false
// if the reservation of the pod on the node was deleted meanwhile.
func (t instance) unpublished(now time.Time) bool {
	return t.Node != "" && !t.released() && now.Before(t.Until) && now.Sub(t.Ended) < publishLag
}

// released reports whether the reservation of the pod on its node was deleted.
func (t instance) released() bool { return t.Lost == podOnNode{t.PodUID, t.Node} }

// contradicts reports whether a reservation of a node to which the last pod with the name was not
// bound contradicts what the API server has shown of that pod. That is so if the reservation is of
// that pod; or if that pod had started, and either the reservation was created after the pod, or
// the reservation of the pod's own node was published and deleted, so that its window has ended or
// its addresses were released. choose ignores such a reservation, because a compromised node may
// publish reservations of pods that it never ran.
func (t instance) contradicts(r *control.Reservation) bool {
	if t.Node == "" || r.Node == t.Node {
		return false
	}
	return r.PodUID != "" && r.PodUID == t.PodUID ||
		t.Started && (!t.Created.IsZero() && r.CreationTimestamp.After(t.Created) || t.released())
}

// choose returns the node to pin a pod to, the zero value if there is none. all are the
// reservations with the name of the pod, and last is the last instance of that name:
//
//	reservations that count     the last pod                             the node
//	none                        not remembered                           none
//	none                        remembered                               of the last pod
//	the best is of its node     remembered                               of the best reservation
//	the best is of another one  remembered, and had not started          of the best reservation
//	the best is of another one  remembered, and had started              of the last pod
//	some                        not remembered                           of the best reservation
//
// A reservation counts unless a user has asked to release it, its hold has ended, or last
// contradicts it. preferable says which is the best. The last pod is remembered for publishLag
// after its end, because the reservation of its node may not be published yet, and not if a user
// has asked to release a reservation of that node.
func choose(all []*control.Reservation, last instance, now time.Time) pinTarget {
	var best *control.Reservation
	remembered := last.unpublished(now)
	for _, r := range all {
		switch {
		case r.Releasing:
			remembered = remembered && r.Node != last.Node
		case r.IsOver(now) || last.contradicts(r):
		case best == nil || preferable(r, best, last.PodUID):
			best = r
		}
	}
	switch {
	case remembered && (best == nil || best.Node != last.Node && last.Started):
		return pinTarget{Node: last.Node, Addresses: last.Addresses, Expected: last.Addresses, Remembered: true}
	case best == nil:
		return pinTarget{}
	}
	return pinTarget{Node: best.Node, Addresses: best.Addresses, Expected: best.Addresses}
}

// preferable reports whether the reservation a is preferable to b. last is the UID of the last pod
// with the name, "" if not known. The first criterion in which a and b differ decides:
//
//   - The reservation of the last pod is preferable.
//   - The reservation that shows the later event is preferable, or else the one that was written
//     later. A pod that was admitted without a manager has no label, so the manager has not seen
//     where it ran.
//
// The state Bound is no criterion, because the reservation of a node that died remains Bound for as
// long as the object exists.
func preferable(a, b *control.Reservation, last string) bool {
	if a, b := a.PodUID == last, b.PodUID == last; last != "" && a != b {
		return a
	}
	since, before := shows(a), shows(b)
	if !since.IsZero() && !before.IsZero() && !since.Equal(before) {
		return since.After(before)
	}
	return cmp.Or(len(a.ResourceVersion)-len(b.ResourceVersion), cmp.Compare(a.ResourceVersion, b.ResourceVersion)) > 0
}

// shows returns when the event happened that a reservation shows: the begin of a hold, or of the
// life of the pod. The order of the writes is another one, because the agent of a node that a pod
// has left may write the hold when the pod already runs on another node. It returns zero if the
// time is not known.
func shows(r *control.Reservation) time.Time {
	switch since := r.HeldSince(); {
	case !since.IsZero():
		return since
	case r.Written.IsZero():
		return r.Written
	case r.Bound: // in that second; the pod's release elsewhere may be of the same one
		return r.Written.Add(time.Second - 1)
	}
	return r.Written.Add(-ipam.ReturnDelay)
}
