package windows

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// deferBelow is the remaining time below which a hold is extended if its pod is starting.
	deferBelow = time.Minute
	// deferTo is the remaining time of a hold after its extension.
	deferTo = 2 * time.Minute
)

// plan contains the changes that a pass makes.
type plan struct {
	Follow []maintain.PodWindow // pods whose window differs from that of their leases
	Name   []store.NamedPod     // pods with a reservation name, before their sandbox
	// Expect contains the holds that starting pods will claim and that end in at most deferBelow.
	Expect map[maintain.Ref]lease.Lease
	// End contains, by reason, the holds of a deleted namespace for an existing pod's name, and
	// those that a boot began for pods that do not exist any more.
	End map[string][]lease.Lease
	// RequeueAfter is the time until the next hold of a starting pod must be extended, or 0 if no
	// pass is necessary before the next change.
	RequeueAfter time.Duration
}

// makePlan returns the plan for the pods of a node and the leases in its store. known are the UIDs
// of the namespaces of the pods. makePlan is level-triggered: once its plan has been carried out,
// it returns an empty plan.
func makePlan(pods map[kube.Name]retention.Pod, view maintain.NodeView, known namespaces) plan {
	plan := plan{Expect: map[maintain.Ref]lease.Lease{}, End: map[string][]lease.Lease{}}
	leasesOf, claims := leasesFor(pods, view.Leases), map[claim]*claimed{}
	for name, p := range pods {
		uid := known[ownerOf(p)]
		leases := plan.endDeleted(leasesOf[name], uid)
		if p.Invalid == "" {
			plan.follow(p, leases, view, uid)
		}
		expect(claims, p, leases, view.Now)
	}
	for of, c := range claims {
		plan.extend(c.first(of, view.Now), view.Now)
	}
	plan.endGone(pods, view)
	return plan
}

// podGone is the reason in the journal for the end of a hold that a boot began.
const podGone = "its pod does not exist any more"

// endGone plans the end of the holds that a boot began for pods that do not exist any more. A list
// without any pod proves nothing, because the agent is a pod of the node. A hold without a key is
// for no pod, and retention.End leaves it.
func (plan *plan) endGone(pods map[kube.Name]retention.Pod, view maintain.NodeView) {
	for _, l := range view.Leases {
		pod := pods[kube.Name{Namespace: l.Namespace, Name: l.Name}]
		if len(pods) > 0 && l.IsBootHold(view.Now.BootID) && pod.UID != l.UID {
			plan.End[podGone] = append(plan.End[podGone], l)
		}
	}
}

// leaving returns the pods with a reservation name that are being deleted, or were, and whose
// leases do not show it, and those that are not, and whose leases do. former are the pods of an
// earlier pass. A pod that is in neither list may be new, and the watch late.
func leaving(pods, former map[kube.Name]retention.Pod, leases []lease.Lease) (out []maintain.LeavingPod) {
	for _, l := range leases {
		name := kube.Name{Namespace: l.Namespace, Name: l.Name}
		exists := pods[name].UID == l.UID
		pod := maintain.LeavingPod{Namespace: l.Namespace, Name: l.Name,
			Leave: lease.Leave{UID: l.UID, Stays: exists && !pods[name].Deleting}}
		isKnown := exists || former[name].UID == l.UID
		if isKnown && maintain.Changes(l, pod.Leave) && !slices.Contains(out, pod) {
			out = append(out, pod)
		}
	}
	return out
}

// leasesFor returns, for each pod, the leases of its name, and the holds of its reservation name,
// which it may take.
func leasesFor(pods map[kube.Name]retention.Pod, leases []lease.Lease) map[kube.Name][]lease.Lease {
	out, held := retention.ByPod(leases), map[kube.Name][]lease.Lease{}
	for _, l := range leases {
		if l.ReserveAs != "" && l.State == lease.Held {
			name := kube.Name{Namespace: l.Namespace, Name: l.ReserveAs}
			held[name] = append(held[name], l)
		}
	}
	for name, p := range pods {
		for _, l := range held[kube.Name{Namespace: p.Namespace, Name: p.ReserveAs}] {
			if l.Name != name.Name {
				out[name] = append(out[name], l)
			}
		}
	}
	return out
}

// endDeleted plans the end of the holds that belong to a deleted namespace of the same name. uid is
// the UID of the namespace that exists now, or "" if it is not known; then no hold ends. endDeleted
// returns the leases that remain.
func (plan *plan) endDeleted(leases []lease.Lease, uid string) (rest []lease.Lease) {
	for _, l := range leases {
		if l.IsHold && uid != "" && retention.IsOfDeletedNamespace(l, uid) {
			plan.End[retention.NamespaceDeleted] = append(plan.End[retention.NamespaceDeleted], l)
		} else {
			rest = append(rest, l)
		}
	}
	return rest
}

// follow plans the update of the pod's window if the window or the reservation name of a lease
// differs from what the pod requests within the limits of its namespace. For a pod without a
// lease, it plans the record of the reservation name, which the plugin reads if the runtime passes
// no annotations.
func (plan *plan) follow(p retention.Pod, leases []lease.Lease, view maintain.NodeView, namespaceUID string) {
	w := maintain.PodWindow{Namespace: p.Namespace, Name: p.Name.Name, SetWindow: lease.SetWindow{UID: p.UID,
		Window: p.Window, ReserveAs: p.ReserveAs, Owner: p.Owner}}
	if w.Window > 0 {
		w.NamespaceUID = namespaceUID
		w.Window, w.WhyCut = view.Limits.Of(p.Namespace).Window(w.Window, p.Namespace)
	}
	hasLease := slices.ContainsFunc(leases, func(l lease.Lease) bool { return l.UID == p.UID })
	record := store.NamedPod{Namespace: p.Namespace, Name: p.Name.Name, UID: p.UID,
		ReserveAs: w.ReserveAs, Window: w.Window}
	_, isStored := view.NamedPods[record]
	if w.ReserveAs != "" && w.Window > 0 && p.Expected && !hasLease && !isStored {
		plan.Name = append(plan.Name, record)
	}
	for _, l := range leases {
		if l.Name != p.Name.Name {
			continue
		}
		if maintain.Changes(l, w.SetWindow) {
			plan.Follow = append(plan.Follow, w)
			return
		}
	}
}

// claim is what a starting pod needs one address for: its key, and a range set. The range set of an
// imported hold is not known, but its address family is.
type claim struct {
	key lease.Key
	set string
	is4 bool
}

// claimed are the holds of a claim, and the names of the starting pods that have the claim.
// Several pods may have one reservation name.
type claimed struct {
	holds map[maintain.Ref]lease.Lease
	pods  map[string]bool
}

// expect adds the claims of a starting pod, and the holds for them. A cool-down is not extended.
//
// The networks of a pod are attached one after the other. A hold whose key has a bound lease of the
// pod is not needed any more. The other holds are needed until deferTo after the first bound lease:
// by then all networks are attached, or the pod does not use those of the other holds.
func expect(claims map[claim]*claimed, p retention.Pod, leases []lease.Lease, now lease.Instant) {
	attached := map[lease.Key]bool{}
	for _, l := range leases {
		if l.State == lease.Bound && l.UID == p.UID {
			if now.Since(l.BoundAt) >= deferTo {
				return // the pod has its sandbox
			}
			attached[l.Key()] = true
		}
	}
	for _, l := range leases {
		if !p.Expected || !l.IsHold || l.ReserveAs != p.ReserveAs || attached[l.Key()] {
			continue
		}
		of := claim{l.Key(), l.Set, l.Address.Is4()}
		if claims[of] == nil {
			claims[of] = &claimed{map[maintain.Ref]lease.Lease{}, map[string]bool{}}
		}
		claims[of].holds[maintain.RefTo(l)], claims[of].pods[p.Name.Name] = l, true
	}
}

// first returns the holds that the starting pods will get: all of a pod's key, and of a reservation
// name as many as there are pods, in the order in which an ADD takes them (docs/design.md,
// "Reservation names").
func (c *claimed) first(of claim, now lease.Instant) []lease.Lease {
	holds := slices.SortedFunc(maps.Values(c.holds), func(a, b lease.Lease) int {
		switch own := c.pods[a.Name]; {
		case own == c.pods[b.Name]:
			return cmp.Or(cmp.Compare(now.Since(a.ReleasedAt), now.Since(b.ReleasedAt)), a.Address.Compare(b.Address))
		case own:
			return -1
		}
		return 1
	})
	if of.key.ReserveAs != "" {
		holds = holds[:min(len(holds), len(c.pods))]
	}
	return holds
}

// extend plans the extension of holds that end in at most deferBelow. A later pass extends the
// others. A hold without end needs no extension.
func (plan *plan) extend(holds []lease.Lease, now lease.Instant) {
	for _, l := range holds {
		switch rest := l.Remaining(now); {
		case rest == lease.Forever:
		case time.Duration(rest) > deferBelow:
			plan.requeueAfter(time.Duration(rest) - deferBelow)
		default:
			plan.Expect[maintain.RefTo(l)] = l
			plan.requeueAfter(deferTo - deferBelow)
		}
	}
}

// requeueAfter makes the next pass run after d, but at least a second, unless it is to run earlier.
func (plan *plan) requeueAfter(d time.Duration) {
	d = max(d, time.Second)
	if plan.RequeueAfter > 0 {
		d = min(d, plan.RequeueAfter)
	}
	plan.RequeueAfter = d
}
