// Package windows brings the windows in the annotations of a node's pods to the node's leases: the second of the two
// roads of DESIGN 3. It works with flannel's stock configuration, with runtimes that pass no annotations, and follows an
// annotation that is changed while the pod runs.
package windows

import (
	"fmt"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	// DeferBelow is how little of a hold is left when its end is put off.
	DeferBelow = time.Minute
	// DeferTo is how much is left then.
	DeferTo = 2 * time.Minute
)

// generated are the controllers whose pods have generated names: such a name never comes back, and what is kept for it
// is lost. A pod that was made by hand from generateName keeps what it asks for: its maker may make it again by its name.
var generated = map[nodepods.Owner]bool{
	{Group: "apps", Kind: "ReplicaSet"}:             true,
	{Group: "apps", Kind: "DaemonSet"}:              true,
	{Group: "batch", Kind: "Job"}:                   true,
	{Group: "", Kind: "ReplicationController"}:      true,
	{Group: "extensions", Kind: "ReplicaSet"}:       true,
	{Group: "apps.kruise.io", Kind: "BroadcastJob"}: true,
	{Group: "apps.kruise.io", Kind: "DaemonSet"}:    true,
	cloneSet: true,
}

// cloneSet makes a pod again under its name where the pod has a volume claim of its own: the claim outlives a pod that is
// deleted or evicted, and the name is made of the same instance id.
var cloneSet = nodepods.Owner{Group: "apps.kruise.io", Kind: "CloneSet"}

func returns(p nodepods.Pod) bool {
	kind := nodepods.Owner{Group: p.Owner.Group, Kind: p.Owner.Kind}
	return !generated[kind] || kind == cloneSet && p.OwnClaim
}

// Decide returns the window that a pod's leases should have. An error is that of the annotation: what is stored stands.
func Decide(p nodepods.Pod) (ipam.PodWindow, error) {
	w := ipam.PodWindow{Namespace: p.Namespace, Name: p.Name.Name, UID: p.UID}
	if !p.Asks {
		return w, nil
	}
	window, err := policy.ParseWindow(p.Asked)
	if err != nil {
		return w, fmt.Errorf("annotation %s: %w", policy.Annotation, err)
	}
	if !returns(p) {
		return w, nil
	}
	w.Window = window
	if window == lease.Forever {
		w.Owner = OwnerText(p.Owner)
	}
	return w, nil
}

// Plan is what is to be done.
type Plan struct {
	Follow  []ipam.PodWindow // leases that have another window than their pod asks for
	Expect  []ipam.Expected  // holds whose pod is about to come back, and that are about to end
	Invalid map[live.Name]error
	// Again is when a hold will be about to end; 0 for never.
	Again time.Duration
}

// Make plans for the pods of a node and what its store says. It is idempotent: what was done needs no plan.
func Make(pods map[live.Name]nodepods.Pod, view ipam.NodeView) Plan {
	plan := Plan{Invalid: map[live.Name]error{}}
	for name, leases := range ByPod(view.Leases) {
		if p, ok := pods[name]; ok {
			plan.follow(p, leases, view)
			plan.expect(p, leases, view.Now)
		}
	}
	for name, p := range pods {
		if _, err := Decide(p); err != nil {
			plan.Invalid[name] = err
		}
	}
	return plan
}

// ByPod sorts leases that have a claimant by its name.
func ByPod(leases []lease.Lease) map[live.Name][]lease.Lease {
	out := map[live.Name][]lease.Lease{}
	for _, l := range leases {
		if !l.Key().IsZero() {
			n := live.Name{Namespace: l.Namespace, Name: l.Name}
			out[n] = append(out[n], l)
		}
	}
	return out
}

func (plan *Plan) follow(p nodepods.Pod, leases []lease.Lease, view ipam.NodeView) {
	w, err := Decide(p)
	if err != nil {
		return
	}
	for _, l := range leases {
		stored, known := view.Windows[l.Key()]
		if ipam.FollowsWindow(w, l) || ipam.StoresWindow(w, l, stored, known) {
			plan.Follow = append(plan.Follow, w)
			return
		}
	}
}

func (plan *Plan) expect(p nodepods.Pod, leases []lease.Lease, now lease.Instant) {
	if !p.Expected {
		return
	}
	rest := lease.Forever
	for _, l := range leases {
		if l.State == lease.Bound && l.UID == p.UID {
			return // it has its sandbox
		}
		if l.Firm {
			rest = min(rest, l.Remaining(now))
		}
	}
	switch {
	case rest == lease.Forever:
	case rest <= DeferBelow:
		plan.Expect = append(plan.Expect, ipam.Expected{Namespace: p.Namespace, Name: p.Name.Name})
		plan.again(DeferTo - DeferBelow)
	default:
		plan.again(rest - DeferBelow)
	}
}

func (plan *Plan) again(in time.Duration) {
	if plan.Again == 0 || in < plan.Again {
		plan.Again = max(in, time.Second)
	}
}

// Text is a window for people and in objects: a Go duration, or "forever".
func Text(w time.Duration) string {
	if w == lease.Forever {
		return policy.ForeverWord
	}
	return w.String()
}
