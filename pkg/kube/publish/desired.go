// Package publish shows what a node's store says as IPReservations: one object for each pod that the node keeps
// addresses for (DESIGN 6). What should be there is a pure function of the store; the objects are brought to it, again
// and again. That an object is absent means nothing, so one that was deleted comes back.
package publish

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/kube/windows"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Node is whose objects they are.
type Node struct{ Name, UID string }

// confirmedAfter is how long a sandbox has lived that its pod can start on this node.
const confirmedAfter = 30 * time.Second

// IsKept tells whether a lease promises something to its pod's name.
func IsKept(l lease.Lease) bool {
	return !l.Key().IsZero() && (l.State == lease.Bound && l.Window > 0 || l.State == lease.Held && l.Firm)
}

// Wanted is an object as it should be, and since when.
type Wanted struct {
	Object ipamv1.IPReservation
	Since  lease.Instant // when the pod got or left its addresses
	Leases []ipam.Ref
}

// Plan is what the objects of a node should be.
type Plan struct {
	Objects map[live.Name]Wanted // by the object's name
	// GiveUp are the leases of each pod whose object asks for it (spec.release).
	GiveUp [][]ipam.Ref
	// Again is when time alone will change something; 0 for never.
	Again time.Duration
}

// Make returns what should be, from what the store says, the node's pods, and the objects that are there: they say what
// users ask for, and remember what was confirmed.
func Make(node Node, view ipam.NodeView, pods map[live.Name]nodepods.Pod, there map[live.Name]*ipamv1.IPReservation) Plan {
	plan := Plan{Objects: map[live.Name]Wanted{}}
	for pod, leases := range windows.ByPod(view.Leases) {
		leases = slices.DeleteFunc(leases, func(l lease.Lease) bool { return !IsKept(l) || l.Lapsed(view.Now) })
		if len(leases) == 0 {
			continue
		}
		slices.SortFunc(leases, order)
		name := live.Name{Namespace: pod.Namespace, Name: ipamv1.ObjectName(pod.Name, node.UID)}
		object := there[name]
		w := want(node, pod, leases, view.Now)
		if object != nil && object.Spec.Release == w.Object.Status.ID {
			plan.GiveUp = append(plan.GiveUp, w.Leases)
		}
		w.Object.Status.Confirmed = plan.isConfirmed(leases, pods[pod], object, w.Object.Status, view.Now)
		w.Object.Status.Conditions = conditions(object, w.Object.Status.ID, view.Now.Wall)
		plan.Objects[name] = w
		plan.wakeAtEnd(leases, view.Now)
	}
	return plan
}

// order puts first the lease whose id stands for all: it is the same whatever comes or goes behind it.
func order(a, b lease.Lease) int {
	return cmp.Or(cmp.Compare(a.Pool.Network, b.Pool.Network), cmp.Compare(a.Pool.DataDir, b.Pool.DataDir),
		cmp.Compare(a.Holder.IfName, b.Holder.IfName), a.Address.Compare(b.Address))
}

func want(node Node, pod live.Name, leases []lease.Lease, now lease.Instant) Wanted {
	last := newest(leases)
	w := Wanted{Since: since(last), Object: ipamv1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: ipamv1.ObjectName(pod.Name, node.UID),
			Labels: map[string]string{
				ipamv1.LabelNodeHash: ipamv1.Hash(node.Name),
				ipamv1.LabelPodHash:  ipamv1.Hash(pod.Name),
			},
		},
		Spec: ipamv1.IPReservationSpec{PodName: pod.Name, NodeName: node.Name, NodeUID: node.UID},
		Status: ipamv1.IPReservationStatus{
			ID: leases[0].ID, State: ipamv1.Held, PodUID: last.UID, Window: windows.Text(last.Window),
		},
	}}
	status := &w.Object.Status
	var texts []string
	var until time.Time
	endless := false
	for _, l := range leases {
		w.Leases = append(w.Leases, ipam.RefTo(l))
		texts = append(texts, l.Address.String())
		status.Addresses = append(status.Addresses, ipamv1.Address{
			Network: l.Pool.Network, Interface: l.Holder.IfName, Address: l.Address.String()})
		if l.State == lease.Bound {
			status.State = ipamv1.Bound
		}
		end := l.Until(now)
		endless = endless || end.IsZero()
		if end.After(until) {
			until = end
		}
	}
	status.AddressList = strings.Join(texts, ",")
	if status.State == ipamv1.Held && !endless {
		status.HeldUntil = &metav1.Time{Time: until.Truncate(time.Second).UTC()}
	}
	return w
}

// newest is the lease that changed last: a bound one if there is any.
func newest(leases []lease.Lease) lease.Lease {
	return slices.MaxFunc(leases, func(a, b lease.Lease) int {
		if a.State != b.State {
			return cmp.Compare(b.State, a.State) // Bound comes before Held
		}
		return since(a).Wall.Compare(since(b).Wall)
	})
}

func since(l lease.Lease) lease.Instant {
	if l.State == lease.Held {
		return l.ReleasedAt
	}
	return l.BoundAt
}

// isConfirmed tells whether the pod is known to start on this node: its sandbox has lived long enough, the pod is
// Ready, or the object has said so of this pod before.
func (plan *Plan) isConfirmed(leases []lease.Lease, pod nodepods.Pod, there *ipamv1.IPReservation, s ipamv1.IPReservationStatus, now lease.Instant) bool {
	if there != nil && there.Status.Confirmed && there.Status.ID == s.ID && there.Status.PodUID == s.PodUID {
		return true
	}
	l := newest(leases)
	if l.State == lease.Held {
		return l.ReleasedAt.Since(l.BoundAt) >= confirmedAfter
	}
	if pod.Ready && pod.UID == l.UID {
		return true
	}
	lived := now.Since(l.BoundAt)
	if lived < confirmedAfter {
		plan.again(confirmedAfter - lived)
	}
	return lived >= confirmedAfter
}

// ConditionReleased says what became of spec.release where it has no effect.
const ConditionReleased = "Released"

func conditions(there *ipamv1.IPReservation, id string, now time.Time) []metav1.Condition {
	if there == nil || there.Spec.Release == "" || there.Spec.Release == id {
		return nil
	}
	c := metav1.Condition{
		Type: ConditionReleased, Status: metav1.ConditionFalse, Reason: "OtherLease",
		Message:            "spec.release names lease " + there.Spec.Release + ", this is lease " + id,
		LastTransitionTime: metav1.Time{Time: now.Truncate(time.Second)},
	}
	for _, old := range there.Status.Conditions {
		if old.Type == c.Type && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return []metav1.Condition{c}
}

func (plan *Plan) wakeAtEnd(leases []lease.Lease, now lease.Instant) {
	for _, l := range leases {
		if rest := l.Remaining(now); l.State == lease.Held && rest != lease.Forever {
			plan.again(rest)
		}
	}
}

func (plan *Plan) again(in time.Duration) {
	in += 10 * time.Millisecond // not a moment too early
	if plan.Again == 0 || in < plan.Again {
		plan.Again = in
	}
}
