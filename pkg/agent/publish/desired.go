// Package publish publishes the store, and serves spec.release and AddressRequests. There is one
// IPReservation for each pod whose addresses are retained on the node, and one NodeAddressPool with
// the numbers of the node's store.
//
// The desired IPReservations are computed from the store, the node's pods and the existing objects.
// The Publisher applies them with server-side apply whenever one of these changes.
package publish

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

// nodeIdentity is the name and the UID of the node's object in the API.
type nodeIdentity struct{ Name, UID string }

// owners returns the owner of the node's objects: the API server's garbage collector deletes them
// when the node, with this UID, does not exist any more. An absent node releases no address: the
// agent of a node that is registered again publishes what it has.
func (n nodeIdentity) owners() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID(n.UID)}}
}

// confirmedAfter is how long a sandbox must live before it proves that its pod can start on this
// node.
const confirmedAfter = 30 * time.Second

// wanted is the desired state of an IPReservation.
type wanted struct {
	Object ipamv1.IPReservation
	Leases []lease.Lease
}

// plan contains the changes that a pass makes.
type plan struct {
	Objects map[kube.Name]wanted // by the object's name
	Release []lease.Lease        // of pods whose object requests it with spec.release
	// RequeueAfter is the time until the plan changes without a change of its inputs, or 0 if it
	// does not.
	RequeueAfter time.Duration
}

// makePlan returns the plan for the leases of a node that are retained. pods are the node's pods.
// existing are the IPReservations in the API; makePlan reads from them the user's spec.release and
// the confirmation of the sandbox.
func makePlan(
	node nodeIdentity, view maintain.NodeView, pods map[kube.Name]retention.Pod,
	existing map[kube.Name]*ipamv1.IPReservation,
) plan {
	plan := plan{Objects: map[kube.Name]wanted{}}
	for pod, leases := range retention.ByPod(view.Leases) {
		leases = slices.DeleteFunc(leases, func(l lease.Lease) bool { return !l.IsRetained() || l.Lapsed(view.Now) })
		if len(leases) == 0 {
			continue
		}
		slices.SortFunc(leases, order)
		name := kube.Name{Namespace: pod.Namespace, Name: ipamv1.ObjectName(pod.Name, node.UID)}
		object := existing[name]
		w := want(node, pod, leases, view.Now)
		if object != nil && object.Spec.Release == w.Object.Status.ID {
			plan.Release = append(plan.Release, leases...)
		}
		w.Object.Status.Confirmed = plan.isConfirmed(leases, pods[pod], object, w.Object.Status, view.Now)
		if object != nil {
			w.Object.Status = plan.delayed(newest(leases), w.Object.Status, object.Status, view.Now)
		}
		plan.Objects[name] = w
		plan.requeueAtEnd(leases, view.Now)
	}
	return plan
}

// order compares two leases of a pod. The first lease in this order provides the id of the object,
// so that the id does not depend on the order of the leases in the store.
func order(a, b lease.Lease) int {
	return cmp.Or(cmp.Compare(a.Pool.Network, b.Pool.Network), cmp.Compare(a.Pool.DataDir, b.Pool.DataDir),
		cmp.Compare(a.Holder.IfName, b.Holder.IfName), a.Address.Compare(b.Address))
}

// want returns the desired object of a pod, without Confirmed. leases are sorted by
// order and are not empty.
func want(node nodeIdentity, pod kube.Name, leases []lease.Lease, now lease.Instant) wanted {
	last := newest(leases)
	w := wanted{Object: ipamv1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: ipamv1.ObjectName(pod.Name, node.UID),
			Labels: map[string]string{
				ipamv1.LabelNodeHash: node.UID,
				ipamv1.LabelPodHash:  ipamv1.Hash(pod.Name),
			},
			OwnerReferences: node.owners(),
		},
		Spec: ipamv1.IPReservationSpec{PodName: pod.Name, NodeName: node.Name, NodeUID: node.UID},
		Status: ipamv1.IPReservationStatus{
			ID: leases[0].ID, State: ipamv1.Held, PodUID: last.UID, Window: last.Window.String(),
			Reservation: last.ReserveAs,
		},
	}, Leases: leases}
	status := &w.Object.Status
	var texts []string
	var until time.Time
	endless := false
	for _, l := range leases {
		if len(texts) < ipamv1.MaxAddresses {
			texts = append(texts, l.Address.String())
			status.Addresses = append(status.Addresses, ipamv1.Address{Network: l.Pool.Network,
				Interface: l.Holder.IfName, Address: l.Address.String(), State: ipamv1.State(l.State.String())})
		}
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

// newest returns the lease that was bound last. If none is bound, it returns the lease that was
// released last.
func newest(leases []lease.Lease) lease.Lease {
	return slices.MaxFunc(leases, func(a, b lease.Lease) int {
		if a.State != b.State {
			return cmp.Compare(b.State, a.State) // Bound comes before Held
		}
		return since(a).Wall.Compare(since(b).Wall)
	})
}

// since returns when the lease got its state.
func since(l lease.Lease) lease.Instant {
	if l.State == lease.Held {
		return l.ReleasedAt
	}
	return l.BoundAt
}

// isConfirmed reports whether the pod has proven that it can start on this node: its sandbox has
// lived for confirmedAfter, the pod is Ready, or the existing object with the same id and pod UID
// is confirmed. If the sandbox has not lived for that long yet, isConfirmed makes the next pass run
// then.
func (plan *plan) isConfirmed(
	leases []lease.Lease, pod retention.Pod, existing *ipamv1.IPReservation, s ipamv1.IPReservationStatus,
	now lease.Instant,
) bool {
	if existing != nil && existing.Status.Confirmed && existing.Status.ID == s.ID &&
		existing.Status.PodUID == s.PodUID {
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
		plan.requeueAfter(confirmedAfter - lived)
	}
	return lived >= confirmedAfter
}

// delayed returns the status to write, which is the existing one if one write is enough for this
// and the next change. last is the lease of the pod that was bound or released last.
//
// If the pod has returned to its addresses, the existing status shows the hold or the former pod
// until the pod is confirmed, within confirmedAfter. If the pod is away, the existing status shows
// it as Bound for ipamv1.ReturnDelay: if the pod returns before, the hold and the return are one
// write. If anything else has changed, or the hold ends soon, delayed returns s.
func (plan *plan) delayed(
	last lease.Lease, s, existing ipamv1.IPReservationStatus, now lease.Instant,
) ipamv1.IPReservationStatus {
	if !isSameButState(s, existing) {
		return s
	}
	wasBound := existing.State == ipamv1.Bound && existing.Confirmed
	if s.State == ipamv1.Bound {
		isReturn := existing.State == ipamv1.Held || wasBound && existing.PodUID != s.PodUID
		if isReturn && !s.Confirmed && !endsSoon(existing, now.Wall) {
			return existing
		}
		return s
	}
	away := now.Since(last.ReleasedAt)
	if !wasBound || away >= ipamv1.ReturnDelay || endsSoon(s, now.Wall) || s.PodUID != existing.PodUID {
		return s
	}
	plan.requeueAfter(ipamv1.ReturnDelay - away)
	return existing
}

// endsSoon reports whether the hold that a status shows ends before a pod could be confirmed.
func endsSoon(s ipamv1.IPReservationStatus, now time.Time) bool {
	return s.HeldUntil != nil && s.HeldUntil.Time.Before(now.Add(confirmedAfter))
}

// isSameButState reports whether two statuses show the same addresses and window, perhaps in other
// states or for another pod of the name.
func isSameButState(s, existing ipamv1.IPReservationStatus) bool {
	s.Addresses = slices.Clone(s.Addresses)
	for i := range min(len(s.Addresses), len(existing.Addresses)) {
		s.Addresses[i].State = existing.Addresses[i].State
	}
	s.State, s.PodUID = existing.State, existing.PodUID
	s.HeldUntil, s.Confirmed = existing.HeldUntil, existing.Confirmed
	return equality.Semantic.DeepEqual(s, existing)
}

// requeueAtEnd makes the next pass run when the first hold ends, if no pass runs before.
func (plan *plan) requeueAtEnd(leases []lease.Lease, now lease.Instant) {
	for _, l := range leases {
		if rest := l.Remaining(now); l.State == lease.Held && rest != lease.Forever {
			plan.requeueAfter(time.Duration(rest))
		}
	}
}

// requeueAfter makes the next pass run after d, unless it is to run earlier.
func (plan *plan) requeueAfter(d time.Duration) {
	d += 10 * time.Millisecond // so that the pass is not early
	if plan.RequeueAfter == 0 {
		plan.RequeueAfter = d
	}
	plan.RequeueAfter = min(plan.RequeueAfter, d)
}
