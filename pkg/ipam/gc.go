package ipam

import (
	"cmp"
	"context"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
)

// Collect performs GC: it releases every bound lease of the pool whose attachment is not in valid,
// as a DEL would. It changes neither holds nor leases with an unknown owner, because no list of
// valid attachments can contain those. A lease with an unknown interface may be of any interface of
// its container (docs/design.md, "Files that name the container alone").
func (s *Service) Collect(ctx context.Context, in operation.Scope, valid []lease.Attachment) error {
	keep := make(map[lease.Attachment]bool, len(valid))
	for _, a := range valid {
		keep[a] = true
		keep[lease.Attachment{ContainerID: a.ContainerID}] = true // the interface is unknown
	}
	hasEnded := func(content string) bool {
		id, ifName, ok := hostlocal.ParseOwner(content)
		return ok && !keep[lease.Attachment{ContainerID: id, IfName: ifName}]
	}
	files := s.Node.FilesOf(in.Pool, hasEnded)
	for {
		batch := files[:min(gcBatch, len(files))]
		err := s.Node.Update(ctx, in, func(c *operation.Call) error {
			return cmp.Or(c.ImportFiles(in.Pool, batch, hasEnded), collect(c, in.Pool, keep))
		})
		if files = files[len(batch):]; err != nil || len(files) == 0 {
			return err
		}
	}
}

// gcBatch is the largest number of files that GC processes in one transaction.
const gcBatch = 500

func collect(c *operation.Call, p lease.Pool, keep map[lease.Attachment]bool) error {
	leases, err := c.Tx.AllIn(p)
	if err != nil && !c.Repaired {
		return err
	}
	for _, l := range leases {
		if l.State != lease.Bound || l.Holder.ContainerID == "" || keep[l.Holder.Attachment()] {
			continue
		}
		if err := c.Step(); err != nil {
			return err
		}
		last := c.Evidence.Last(l)
		if last == lease.Unknown {
			last = lease.Alive // so that the address is not assigned until the state is known
		}
		if _, err := c.End(l, lease.Release{Holder: l.Holder, LastHolder: last}, c.Now, "GC"); err != nil {
			return err
		}
	}
	return nil
}
