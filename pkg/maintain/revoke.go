package maintain

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
)

// Revoked is one lease that Revoke selected. Err is not nil if the lease was not released.
type Revoked struct {
	Lease lease.Lease
	Err   error
}

// Revoke releases every lease that match selects, at the request of an operator. A bound lease
// whose holder is not proven dead is only released with force. The reason is added to the journal.
//
// Without force Revoke returns ErrNoHostView if it is not proven that the process sees the host.
func (s *Service) Revoke(ctx context.Context, match func(lease.Lease) bool, force bool,
	reason string) ([]Revoked, error) {
	var out []Revoked
	err := s.Node.Update(ctx, operation.Scope{}, func(c *operation.Call) error {
		out = nil
		var selected []lease.Lease
		for l, err := range c.Tx.All {
			if err == nil && match(l) {
				selected = append(selected, l)
			}
		}
		if len(selected) == 0 {
			return nil
		}
		if err := c.ProveView(); err != nil {
			if !force {
				return err
			}
			s.Node.Warnf("released without evidence: %v", err)
		}
		for _, l := range selected {
			if force {
				if err := c.UseFiles(l.Pool); err != nil {
					return err
				}
			}
			e := lease.Revoke{LastHolder: c.Evidence.LifeOf(l), Force: force}
			_, err := c.End(l, e, c.Now, reason)
			if err != nil && !errors.Is(err, lease.ErrHolderAlive) {
				return err
			}
			if err != nil {
				err = fmt.Errorf("%s is held by container %s: %w", l.Address, l.Holder.ContainerID, err)
			}
			if why := c.Evidence.WhyUnknown(l); err != nil && why != nil {
				err = fmt.Errorf("%w: it is not proven to be gone (%w)", err, why)
			}
			out = append(out, Revoked{l, err})
		}
		return nil
	})
	return out, err
}
