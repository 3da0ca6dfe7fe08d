package ipam

import (
	"context"
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Revoked is one lease that an operator's release met, and why it stands if it
// does.
type Revoked struct {
	Lease lease.Lease
	Err   error
}

// Revoke gives up every lease that match selects: an operator's release. A
// bound lease whose holder is not proven dead stays, unless forced. The reason
// goes to the journal.
//
// ErrNoHostView where the view is not proven to be the host's. With force nothing
// that is seen there decides, so it works from everywhere.
func (s *Service) Revoke(ctx context.Context, match func(lease.Lease) bool, force bool,
	reason string) ([]Revoked, error) {
	var out []Revoked
	err := s.update(ctx, scope{}, func(c *call) error {
		out = nil
		var met []lease.Lease
		c.tx.All(func(l lease.Lease, err error) bool {
			if err == nil && match(l) {
				met = append(met, l)
			}
			return true
		})
		if len(met) == 0 {
			return nil
		}
		if err := c.proveView(); err != nil {
			if !force {
				return err
			}
			s.warn("released without evidence: %v", err)
		}
		for _, l := range met {
			_, err := c.move(l, lease.Revoke{LastHolder: c.lifeOf(l), Force: force}, store.EventRevoked, reason)
			if err != nil && !isStanding(err) {
				return err
			}
			if err != nil {
				err = fmt.Errorf("%s is held by container %s: %w", l.Address, l.Holder.ContainerID, err)
			}
			if doubt := c.doubt(l); err != nil && doubt != nil {
				err = fmt.Errorf("%w: it is not proven to be gone (%w)", err, doubt)
			}
			out = append(out, Revoked{l, err})
		}
		return nil
	})
	return out, err
}
