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

// Release ends what the attachment holds, in whatever pool (DEL): the window
// of each lease begins. It may come any number of times, and changes nothing
// for anybody else (I6). Where is only where to look for a container that
// host-local served, and for a store that does not know the pool.
//
// A release that the store cannot take is spooled. Only where that fails too
// is there an error, for DEL has one chance (docs/facts.md, "flannel's DEL has one chance").
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

// releaseFound ends what the attachment holds. Where the store does not know it, host-local may
// have served it: its files are searched without a lock, because they may be thousands, and DELs of
// containers that nobody knows come often (docs/facts.md, "containerd sends DEL three times or
// more").
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

// filesOf returns the addresses whose files name the attachment. It takes no lock: whoever acts on
// them reads those files again.
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

// scopeOf is the scope of a call that makes nothing new: a pool is mirrored only
// where host-local has a directory of it. It may not know the policies.
func scopeOf(in PoolHint) scope {
	s := scope{pool: in.Pool, sets: in.Sets, soft: policy.Defaults().SoftHold, mirror: hostlocal.Exists(in.Pool)}
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
