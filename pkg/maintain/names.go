package maintain

import (
	"cmp"
	"context"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// NamePods stores the reservation names and windows of pods that are bound to this node and have no
// lease yet, for ADDs whose runtime passes no annotations. It writes nothing for a pod that has a
// lease: Follow names that. A record is removed by the ADD that uses it, or a day later.
func (s *Service) NamePods(ctx context.Context, pods []store.NamedPod) error {
	_, err := inSteps(ctx, s, pods, namePod)
	return err
}

func namePod(c *operation.Call, p store.NamedPod) (named bool, err error) {
	leases, err := c.Tx.ByPod(p.Namespace, p.Name)
	if err != nil || slices.ContainsFunc(leases, func(l lease.Lease) bool { return l.UID == p.UID }) {
		return false, err
	}
	return true, c.Tx.SetNamedPod(p, c.Now.Wall)
}

// LeavingPod is a pod of this node that is being deleted, or that is not after all.
type LeavingPod struct {
	Namespace, Name string
	lease.Leave
}

// MarkLeaving records whether pods are being deleted (lease.Lease.Leaving), in their bound and
// named leases. It writes only changes.
func (s *Service) MarkLeaving(ctx context.Context, pods []LeavingPod) error {
	_, err := inSteps(ctx, s, pods, func(c *operation.Call, p LeavingPod) (bool, error) {
		leases, err := c.Tx.ByPod(p.Namespace, p.Name)
		for _, l := range leases {
			_, _, e := c.Change(l, p.Leave)
			err = cmp.Or(err, e)
		}
		return false, err
	})
	return err
}
