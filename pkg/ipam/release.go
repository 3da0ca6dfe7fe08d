package ipam

import (
	"context"
	"errors"
	"net/netip"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
)

// Release performs DEL: it releases the leases of an attachment in all pools, so that the window of
// each starts. A repeated call changes nothing. in is the pool of the DEL's configuration, as far
// as that can be read; it is imported if necessary, and searched for files of the attachment if
// host-local has served the ADD.
//
// Most DELs are only queued (operation.Node.QueueRelease), and so are those that the store cannot
// record. Release returns an error only if that fails as well, because the runtime may not repeat
// the DEL (docs/facts.md, "flannel's DEL has one chance").
func (s *Service) Release(ctx context.Context, who lease.Attachment, in operation.Scope) error {
	s.Node.Store.Run().Unannounce(who)
	ctx = files.WithMaxWait(ctx) // of both attempts together
	if s.Node.QueueRelease(ctx, who) {
		return nil
	}
	err := s.releaseFound(ctx, who, in)
	if err == nil {
		return nil
	}
	if e := s.Node.Store.Run().AddDEL(who, in.Pool, s.Node.Clock()); e != nil {
		return errors.Join(err, e)
	}
	s.Node.Warnf("the release of container %s is queued: %v", who.ContainerID, err)
	return nil
}

// releaseFound releases the leases of an attachment. If the store has none, or their files name
// another container, host-local may have served an ADD: then releaseFound searches host-local's
// files. It does so without a lock, because there may be thousands of files, and DELs of unknown
// containers are frequent (docs/facts.md, "containerd sends DEL three times or more").
func (s *Service) releaseFound(ctx context.Context, who lease.Attachment, in operation.Scope) error {
	release := func(p lease.Pool, files []netip.Addr) (found, all bool, err error) {
		err = s.Node.Update(ctx, in, func(c *operation.Call) (err error) {
			if err = c.ImportFiles(in.Pool, files, operation.Names(who)); err == nil {
				found, all, err = c.Release(who, p, c.Now, "DEL")
			}
			return err
		})
		return found, all, err
	}
	found, all, err := release(lease.Pool{}, nil)
	if all || err != nil {
		return err
	}
	if files := s.Node.FilesOf(in.Pool, operation.Names(who)); len(files) > 0 {
		p := in.Pool
		if found {
			p = lease.Pool{}
		}
		_, _, err = release(p, files)
	}
	return err
}
