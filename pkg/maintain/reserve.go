package maintain

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// NamePods stores the reservation names and windows of pods that are bound to this node and have no
// lease yet, for ADDs whose runtime passes no annotations. It writes nothing for a pod that has a
// lease: Follow names that. A record is removed by the ADD that uses it, and after a day.
func (s *Service) NamePods(ctx context.Context, pods []store.PodReservation) error {
	_, err := s.inSteps(ctx, len(pods), func(c *transact.Call, i int) error { return namePod(c, pods[i]) })
	return err
}

func namePod(c *transact.Call, p store.PodReservation) error {
	leases, err := c.Tx.ByPod(p.Namespace, p.Name)
	if err != nil || slices.ContainsFunc(leases, func(l lease.Lease) bool { return l.UID == p.UID }) {
		return err
	}
	return c.Tx.SetPodReservation(p, c.Now.Wall)
}

func podReservations(tx *store.Tx) map[store.PodReservation]bool {
	out := map[store.PodReservation]bool{}
	for p := range tx.PodReservations() {
		out[p] = true
	}
	return out
}

// nameIdle is how long a record of NamePods stays in the store without an ADD that uses it.
const nameIdle = 24 * time.Hour

// ForgetNames removes the records of NamePods that no ADD has used for nameIdle. The agent calls it
// about every hour.
func (s *Service) ForgetNames(ctx context.Context) error {
	var old []store.PodReservation
	now := s.Node.Clock()
	err := s.Node.Store.View(ctx, func(tx *store.Tx) error {
		old = nil
		for p, stored := range tx.PodReservations() {
			if now.Wall.Sub(stored) >= nameIdle {
				old = append(old, p)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = s.inSteps(ctx, len(old), func(c *transact.Call, i int) error {
		return c.Tx.DeletePodReservation(old[i].Namespace, old[i].UID)
	})
	return err
}

// LeavingPod is a pod of this node that is being deleted, or that is not after all.
type LeavingPod struct {
	Namespace, Name, UID string
	Stays                bool
}

// MarkLeaving records whether pods are being deleted (lease.Lease.Leaving), in their bound and
// named leases. It writes only changes.
func (s *Service) MarkLeaving(ctx context.Context, pods []LeavingPod) error {
	_, err := s.inSteps(ctx, len(pods), func(c *transact.Call, i int) error { return markLeaving(c, pods[i]) })
	return err
}

func markLeaving(c *transact.Call, p LeavingPod) error {
	leases, err := c.Tx.ByPod(p.Namespace, p.Name)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if !MarksLeaving(p, l) {
			continue
		}
		next, err := lease.Apply(l, lease.Leave{UID: p.UID, Stays: p.Stays}, c.Now)
		if err == nil {
			err = c.Put(l, next)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// MarksLeaving reports whether MarkLeaving would change the lease of a pod.
func MarksLeaving(p LeavingPod, l lease.Lease) bool {
	next, err := lease.Apply(l, lease.Leave{UID: p.UID, Stays: p.Stays}, lease.Instant{})
	return err == nil && next.Leaving != l.Leaving
}
