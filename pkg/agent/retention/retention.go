// Package retention applies the windows in the annotations of a node's pods to the node's leases.
// The plugin reads the annotation from the CNI request where the runtime passes it; this package
// also serves runtimes and configurations that do not, such as flannel's default one, and follows
// an annotation that is changed while the pod runs.
package retention

import (
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/ordinals"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	// DeferBelow is the remaining time of a hold below which it is extended, if its pod is
	// starting.
	DeferBelow = time.Minute
	// DeferTo is the remaining time of a hold after it was extended.
	DeferTo = 2 * time.Minute
)

// generated lists controllers whose pods have generated names, also where the pod does not show it
// (docs/facts.md, "Generated names never return").
var generated = map[podcache.Owner]bool{
	{Group: "apps", Kind: "ReplicaSet"}:             true,
	{Group: "apps", Kind: "DaemonSet"}:              true,
	{Group: "batch", Kind: "Job"}:                   true,
	{Group: "", Kind: "ReplicationController"}:      true,
	{Group: "extensions", Kind: "ReplicaSet"}:       true,
	{Group: "apps.kruise.io", Kind: "BroadcastJob"}: true,
	{Group: "apps.kruise.io", Kind: "DaemonSet"}:    true,
	cloneSet: true,
}

// cloneSet recreates a pod under the same name if the pod has a volume claim of its own: the claim
// outlives a pod that is deleted or evicted, and the name is derived from the claim's instance id.
var cloneSet = podcache.Owner{Group: "apps.kruise.io", Kind: "CloneSet"}

// keepsName reports whether a pod of that name may come back. A name that was generated is never
// used again, so that an address reserved for it would be lost to others for the window. The
// label of a StatefulSet's pod tells its ordinal from a suffix that has digits only. If nothing
// shows how the pod was named, it may come back.
func keepsName(p podcache.Pod) bool {
	kind := podcache.Owner{Group: p.Owner.Group, Kind: p.Owner.Kind}
	switch {
	case kind == cloneSet && p.OwnClaim, p.SetPodName == p.Name.Name:
		return true
	case generated[kind]:
		return false
	}
	return !isGenerated(p.GenerateName, p.Name.Name)
}

// The API server appends suffixLength characters of suffixCharacters to the first maxPrefix bytes
// of metadata.generateName (docs/facts.md, "Generated names never return").
const (
	suffixLength     = 5
	suffixCharacters = "bcdfghjklmnpqrstvwxz2456789"
	maxPrefix        = 63 - suffixLength
)

// isGenerated reports whether a name was generated from a prefix: it is the prefix and something
// that is not a number, or could also be a suffix of the API server's.
func isGenerated(prefix, name string) bool {
	suffix, hasPrefix := strings.CutPrefix(name, prefix[:min(len(prefix), maxPrefix)])
	if prefix == "" || !hasPrefix {
		return false
	}
	_, isNumber := ordinals.Parse(suffix)
	return !isNumber || len(suffix) == suffixLength && strings.Trim(suffix, suffixCharacters) == ""
}

// Decide returns the window that a pod's leases should have. It returns an error if the annotation
// is invalid; then the window in the store must not change.
func Decide(p podcache.Pod) (maintain.PodWindow, error) {
	w := maintain.PodWindow{Namespace: p.Namespace, Name: p.Name.Name, UID: p.UID}
	if !p.HasAnnotation {
		return w, nil
	}
	window, err := policy.ParseWindow(p.Annotation)
	if err != nil {
		return w, fmt.Errorf("annotation %s: %w", policy.Annotation, err)
	}
	if !keepsName(p) {
		return w, nil
	}
	w.Window = window
	if window == lease.Forever {
		w.Owner = ownerText(p.Owner)
	}
	return w, nil
}

// plan is what a pass has to do.
type plan struct {
	Follow  []maintain.PodWindow    // windows of pods with a lease whose window differs
	Expect  []maintain.PendingPod   // starting pods whose hold is about to end
	Deleted [][]maintain.Ref        // holds of deleted namespaces that have a pod's name now, by pod
	Invalid map[informer.Name]error // pods with an invalid annotation
	// RequeueAfter is the time until the hold of a starting pod will be about to end, 0 for none.
	RequeueAfter time.Duration
}

// makePlan returns the plan for the pods of a node and the leases in its store. It is idempotent:
// for leases that were changed as planned, the plan is empty.
func makePlan(pods map[informer.Name]podcache.Pod, view maintain.NodeView, uids namespaces) plan {
	plan := plan{Invalid: map[informer.Name]error{}}
	for name, leases := range ByPod(view.Leases) {
		if p, ok := pods[name]; ok {
			uid := uids[p.ObjectUID]
			leases = plan.endDeleted(leases, uid)
			plan.follow(p, leases, view, uid)
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

// ByPod groups leases by the pod that they belong to. It omits leases without a pod.
func ByPod(leases []lease.Lease) map[informer.Name][]lease.Lease {
	out := map[informer.Name][]lease.Lease{}
	for _, l := range leases {
		if !l.Key().IsZero() {
			n := informer.Name{Namespace: l.Namespace, Name: l.Name}
			out[n] = append(out[n], l)
		}
	}
	return out
}

// endDeleted plans the end of the holds of a namespace that was deleted before the one that exists
// now, which has the UID, was created. It returns the other leases.
func (plan *plan) endDeleted(leases []lease.Lease, uid string) (rest []lease.Lease) {
	var refs []maintain.Ref
	for _, l := range leases {
		if l.Firm && uid != "" && OfDeletedNamespace(l, uid) {
			refs = append(refs, maintain.RefTo(l))
		} else {
			rest = append(rest, l)
		}
	}
	if refs != nil {
		plan.Deleted = append(plan.Deleted, refs)
	}
	return rest
}

func (plan *plan) follow(p podcache.Pod, leases []lease.Lease, view maintain.NodeView, namespaceUID string) {
	w, err := Decide(p)
	if err != nil {
		return
	}
	if w.Window > 0 {
		w.NamespaceUID = namespaceUID
		w.Window, w.Limited = view.Limits.Of(p.Namespace).Window(w.Window, p.Namespace)
	}
	for _, l := range leases {
		stored, known := view.Windows[l.Key()]
		if maintain.FollowsWindow(w, l) || maintain.StoresWindow(w, l, stored, known) {
			plan.Follow = append(plan.Follow, w)
			return
		}
	}
}

func (plan *plan) expect(p podcache.Pod, leases []lease.Lease, now lease.Instant) {
	if !p.Expected {
		return
	}
	rest := lease.Forever
	for _, l := range leases {
		if l.State == lease.Bound && l.UID == p.UID {
			return // the pod has its sandbox
		}
		if l.Firm {
			rest = min(rest, l.Remaining(now))
		}
	}
	switch {
	case rest == lease.Forever:
	case time.Duration(rest) <= DeferBelow:
		plan.Expect = append(plan.Expect, maintain.PendingPod{Namespace: p.Namespace, Name: p.Name.Name})
		plan.requeueAfter(DeferTo - DeferBelow)
	default:
		plan.requeueAfter(time.Duration(rest) - DeferBelow)
	}
}

func (plan *plan) requeueAfter(d time.Duration) {
	if plan.RequeueAfter == 0 || d < plan.RequeueAfter {
		plan.RequeueAfter = max(d, time.Second)
	}
}
