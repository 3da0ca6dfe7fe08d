package ipam

import (
	"context"
	"errors"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Release ends what the attachment holds, in whatever pool (DEL): the window
// of each lease begins. It may come any number of times, and changes nothing
// for anybody else (I6). Where is only where to look for a container that
// host-local served, and for a store that does not know the pool.
//
// A release that the store cannot take is spooled. Only where that fails too
// is there an error, for DEL has one chance (docs/facts.md, "flannel's DEL has one chance").
func (s *Service) Release(ctx context.Context, who Attachment, in PoolHint) error {
	s.Store.Unannounce(lease.Holder{ContainerID: who.ContainerID, IfName: who.IfName})
	err := s.update(ctx, scopeOf(in), func(c *call) error {
		leases, err := c.tx.ByHolder(who.ContainerID, who.IfName)
		if err != nil {
			return err
		}
		if len(leases) == 0 {
			if err := c.admitHolder(in.Pool, who); err != nil {
				return err
			}
		}
		return c.release(who, c.now, "DEL")
	})
	if err == nil {
		return nil
	}
	if e := s.Store.Spool(who.ContainerID, who.IfName, s.now()); e != nil {
		return errors.Join(err, e)
	}
	s.warn("the release of container %s is spooled: %v", who.ContainerID, err)
	return nil
}

// scopeOf is the scope of a call that makes nothing new: a pool is mirrored only
// where host-local has a directory of it. It may not know the policies.
func scopeOf(in PoolHint) scope {
	s := scope{pool: in.Pool, sets: in.Sets, soft: policy.Defaults().SoftHold, mirror: adopt.HasDir(in.Pool)}
	if o := in.Options; o != nil {
		s.soft, s.mirror, s.caches = o.SoftHold, o.Mirror && s.mirror, o.CNICacheDirs
	}
	return s
}

// release ends what the attachment held at that time. What it was given later is of a
// new life of the container: ids are used again.
func (c *call) release(who Attachment, at lease.Instant, reason string) error {
	leases, err := c.tx.ByHolder(who.ContainerID, who.IfName)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.BoundAt.IsAfter(at) {
			continue
		}
		if err := c.releaseLease(l, lease.Unknown, at, reason); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) releaseLease(l lease.Lease, last lease.Liveness, at lease.Instant, reason string) error {
	limited := c.atLimit(l)
	e := lease.Release{Holder: l.Holder, Limited: limited, LastHolder: last}
	if _, err := c.moveAt(l, e, store.EventReleased, reason, at); err != nil {
		return err
	}
	if limited {
		return c.log(l, store.EventLimited, "maxHeldShare is reached: the hold is a short one")
	}
	return nil
}
