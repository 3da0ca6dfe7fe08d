package ipam

import (
	"context"
	"errors"
	"net/netip"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Release releases the leases of an attachment in all pools (DEL): the window of each begins. It
// may be called repeatedly, and changes no other lease. The hint names the pool in which to search
// for a container that host-local served, or that a store without the pool does not know.
//
// If the store cannot be written, the release is spooled. Release returns an error only if that
// fails as well, because a DEL may not be repeated (docs/facts.md, "flannel's DEL has one chance").
func (s *Service) Release(ctx context.Context, who Attachment, in PoolHint) error {
	s.Store.Unannounce(lease.Holder{ContainerID: who.ContainerID, IfName: who.IfName})
	err := s.releaseFound(ctx, who, in)
	if err == nil {
		return nil
	}
	if e := s.Store.Spool(who.ContainerID, who.IfName, s.Clock()); e != nil {
		return errors.Join(err, e)
	}
	s.warn("the release of container %s is spooled: %v", who.ContainerID, err)
	return nil
}

// releaseFound releases the leases of an attachment. If the store has none, host-local may have
// served it. Its files are searched without a lock, because there may be thousands, and DELs of
// unknown containers are frequent (docs/facts.md, "containerd sends DEL three times or more").
func (s *Service) releaseFound(ctx context.Context, who Attachment, in PoolHint) error {
	release := func(files []netip.Addr) (found bool, err error) {
		err = s.update(ctx, scopeOf(in), func(c *call) error {
			if err := c.admitHolder(in.Pool, who, files); err != nil {
				return err
			}
			leases, err := c.tx.ByHolder(who.ContainerID, who.IfName)
			if found = len(leases) > 0; !found {
				return err
			}
			return c.release(who, c.now, "DEL")
		})
		return found, err
	}
	found, err := release(nil)
	if found || err != nil {
		return err
	}
	if files := s.filesOf(scopeOf(in), who); len(files) > 0 {
		_, err = release(files)
	}
	return err
}

// filesOf returns the addresses whose files name the attachment. It takes no lock, so the caller
// must read those files again before it acts on them.
func (s *Service) filesOf(in scope, who Attachment) (named []netip.Addr) {
	if !in.mirror {
		return nil
	}
	mirror, err := hostlocal.OpenUnlocked(in.pool)
	if mirror == nil {
		if err != nil {
			s.warn("%v", err)
		}
		return nil
	}
	addrs, err := mirror.Addresses()
	if err != nil {
		s.warn("%v", err)
	}
	for _, addr := range addrs {
		file, _, err := mirror.Read(addr)
		if err != nil {
			s.warn("%v", fileUnreadable(addr, err))
		}
		if hostlocal.Names(file.Content, who.ContainerID, who.IfName) {
			named = append(named, addr)
		}
	}
	return named
}

// scopeOf returns the scope of a call that creates no lease. Its pool is mirrored only if
// host-local has a directory of it. The hint may lack the policies.
func scopeOf(in PoolHint) scope {
	s := scope{pool: in.Pool, sets: in.Sets, soft: policy.Defaults().SoftHold, mirror: hostlocal.Exists(in.Pool)}
	if o := in.Options; o != nil {
		s.soft, s.mirror, s.caches = o.SoftHold, o.Mirror && s.mirror, o.CNICacheDirs
	}
	return s
}

// release releases the leases that the attachment had at a time. Later ones are of a container that
// was started again with the same id.
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
