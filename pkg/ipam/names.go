package ipam

import (
	"cmp"
	"errors"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// setKey sets the key of the pod. It has a reservation name if the pod's annotations have one. If
// the runtime passed no annotations, it has the name that the agent has stored for the pod, or the
// one of a lease that the pod already has.
func (a *assignment) setKey() error {
	pod := a.req.Pod
	if pod == (Pod{}) {
		return nil
	}
	a.key = lease.Key{Pool: a.req.Pool, Namespace: pod.Namespace, Name: pod.Name, IfName: a.req.IfName}
	name := a.req.Retention.ReserveAs
	if !a.req.Retention.Known && pod.UID != "" {
		a.stored, _ = a.call.Tx.NamedPod(pod.Namespace, pod.UID)
		name = a.stored.ReserveAs
		leases, err := a.call.Tx.ByPod(pod.Namespace, pod.Name)
		if err != nil {
			return err
		}
		for _, l := range leases {
			if l.UID == pod.UID && l.ReserveAs != "" {
				name = cmp.Or(name, l.ReserveAs)
				a.stored.Window = cmp.Or(a.stored.Window, l.Window) // of another interface
			}
		}
	}
	if name != "" {
		a.key.Name, a.key.ReserveAs = "", name
	}
	return nil
}

// moveToName gives the reservation name of the pod to the leases that the pod has with another name
// or without one, and to the holds for a pod of its name. So the pod keeps its addresses, and none
// stays held for nobody.
func (a *assignment) moveToName() error {
	pod := a.req.Pod
	if a.key.IsZero() {
		return nil
	}
	leases, err := a.call.Tx.ByPod(pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	for _, l := range leases {
		own := pod.UID != "" && l.UID == pod.UID || l.IsHold && l.ReserveAs == ""
		if !own || l.Pool != a.req.Pool || l.Holder.IfName != a.req.IfName || l.Holder.Is(a.holder) ||
			l.ReserveAs == a.key.ReserveAs {
			continue
		}
		e := lease.SetWindow{UID: l.UID, Window: l.Window, Owner: l.Owner, ReserveAs: a.key.ReserveAs}
		if _, _, err := a.call.Change(l, e); err != nil {
			return err
		}
	}
	return nil
}

// isNamed reports whether the pod has a reservation name.
func (a *assignment) isNamed() bool { return a.key.ReserveAs != "" }

// rank orders the former leases: the retained ones are the first. Those of a reservation name are
// in the order in which the pod prefers them: its own, the held ones, the bound ones.
func (a *assignment) rank(l lease.Lease) (rank int) {
	if !a.isNamed() {
		if !l.IsRetained() {
			rank = 1
		}
		return rank
	}
	if l.Name != a.req.Pod.Name {
		rank += 2
	}
	if l.State == lease.Bound {
		rank++
	}
	return rank
}

// lastReleasedFirst orders holds of a reservation name by the time of their release, the latest
// first. Those of one pod were released and bound at one time, so that a new pod gets the addresses
// of both families.
func (a *assignment) lastReleasedFirst(x, y lease.Lease) int {
	if !a.isNamed() || x.State != lease.Held || y.State != lease.Held {
		return 0
	}
	return cmp.Compare(a.call.Now.Since(x.ReleasedAt), a.call.Now.Since(y.ReleasedAt))
}

// waitForName refuses the call of a pod that can take no address of its reservation name if one is
// about to become free, until busyTimeout after the first refusal of this pod. After that the
// policy onBusy determines whether the pod gets another address; no other pod loses one.
func (a *assignment) waitForName() error {
	free := map[int]bool{}
	var busy []lease.Lease
	a.former = slices.DeleteFunc(a.former, func(l lease.Lease) bool {
		set := pool.SetOf(a.req.Sets, l.Address)
		if set < 0 || len(free) == len(a.req.Sets) {
			return false
		}
		_, err := lease.Apply(l, a.bind(l, l.Address, l.Set), a.call.Now)
		switch {
		case err == nil:
			free[set] = true
		case errors.Is(err, lease.ErrHolderAlive) && l.IsRetained() && a.waitsFor(l):
			busy = append(busy, l)
		}
		return err != nil && l.State == lease.Bound // of a living pod
	})
	if len(free) > 0 || len(busy) == 0 || len(a.req.Requested) > 0 {
		return nil
	}
	first := busy[0]
	for _, l := range busy {
		if _, err := lease.Apply(l, a.supersede(), a.call.Now); err == nil && a.req.Options.OnBusy == policy.New {
			return nil // the time is over
		}
		if a.hasRefused(l) {
			first = l
		}
	}
	return a.refuse(slices.DeleteFunc(busy, func(l lease.Lease) bool { return l.Holder != first.Holder }))
}

// waitsFor reports whether the address of a lease of the reservation name is about to become free:
// it is the pod's own or held, or its pod is being deleted, which the agent may see after the
// webhook. The webhook names the pod that it has seen leave: if another pod has the address by now,
// that one stays. If another new pod waits for the address, it is that one's.
func (a *assignment) waitsFor(l lease.Lease) bool {
	isLeaving := l.Leaving || a.req.Retention.Expects(l.Address, l.UID)
	if l.State == lease.Bound && !isLeaving && l.Name != a.req.Pod.Name {
		return false
	}
	return l.RefusedAt.IsZero() || a.hasRefused(l) || a.call.Now.Since(l.RefusedAt) >= a.req.Options.BusyTimeout
}

// hasRefused reports whether the lease records a refusal of this pod.
func (a *assignment) hasRefused(l lease.Lease) bool {
	return !l.RefusedAt.IsZero() && l.RefusedFor == a.req.Pod.UID
}
