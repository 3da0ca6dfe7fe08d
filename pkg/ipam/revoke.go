package ipam

import (
	"context"
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Revoked is one lease that Revoke selected. Err is the reason if it was not released.
type Revoked struct {
	Lease lease.Lease
	Err   error
}

// Revoke releases every lease that match selects, at the request of an operator. A bound lease
// whose holder is not proven dead is only released with force. The reason is added to the journal.
//
// Without force it returns ErrNoHostView if the process is not proven to see the namespaces of the
// host.
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
