package operation

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/rundir"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The rules of queued DELs:
//
//	a lease of the attachment            what a DEL does, in the next call that writes
//	bound before the DEL                 releases it, at the time of the DEL
//	bound after the DEL                  nothing: the container was started again with the same id
//	any, and the DEL is of another boot  nothing: the boot has ended the lease
//	imported after the DEL               releases it, unless the file is newer and its container not dead
//	damaged, or host-local's lock busy   waits for the next call
//	none, imported, of an earlier boot,  searches the files of its pool for the attachment, and makes
//	or its file does not name it         leases of them first, also if the store does not know the pool
//	none                                 nothing
//
// A DEL that does not wait is over, and goes. Only the pool in its configuration is searched for
// files. TestQueuedDEL has all cases.

// maxQueued is the number of queued DELs from which on a DEL is recorded in the store, with all
// that wait, so that no call has to apply many more.
const maxQueued = 256

// QueueRelease queues the DEL of an attachment, and reports whether it did or the DEL is queued
// already. Nothing is synced: a power cut that loses the record ends the container too, and the
// next boot releases its leases. The next call or the agent applies it.
//
// host-local's files of the leases are written at once, as holds: until it is applied host-local
// may serve calls, and the files may become the only record of the holds. All that is done while
// holding the store's lock, shared. Otherwise a call that has the store's lock could meet
// host-local's and, if this process has no processor meanwhile, it and all the ones behind it would
// begin again after lockMoment.
//
// QueueRelease returns false, and the caller has to record the DEL in the store, if a lease does
// not become a hold by the DEL alone (store.Tx.HoldAfter), was imported, was bound in an earlier
// boot, or has no file that names the attachment; if the store has no lease of it; and after any
// error.
func (n *Node) QueueRelease(ctx context.Context, who lease.Attachment) (queued bool) {
	err := n.Store.View(ctx, func(tx *store.Tx) (err error) {
		queued, err = n.queueRelease(ctx, tx, who)
		return err
	})
	return queued && err == nil
}

func (n *Node) queueRelease(ctx context.Context, tx *store.Tx, who lease.Attachment) (queued bool, err error) {
	now := n.Clock()
	holds, done, err := holdsAfter(tx, who, now)
	if err != nil || len(holds) == 0 {
		return done, err
	}
	f := newFiles(ctx, n.Warnf)
	f.store, f.owner = tx.ID(), n.owner(tx.ID())
	f.reset()
	defer f.release() // after AddDEL: a call that waits for this lock must find the DEL in the queue
	for _, l := range holds {
		dir, err := f.of(l.Pool)
		if err != nil || dir == nil {
			return false, err
		}
		file, _, err := dir.Read(l.Address)
		if err != nil || !hostlocal.Names(file.Content, who.ContainerID, who.IfName) || dir.Write(l, now) != nil {
			return false, err
		}
	}
	return n.Store.Run().AddDEL(who, lease.Pool{}, now) == nil, nil
}

// holdsAfter returns the holds that a DEL of the attachment, now, makes of all its leases; none if
// the DEL has to be recorded in the store. done reports whether the DEL is queued already.
func holdsAfter(tx *store.Tx, who lease.Attachment, now lease.Instant) (holds []lease.Lease, done bool, err error) {
	leases, err := tx.ByHolder(who.ContainerID, who.IfName)
	if err != nil {
		return nil, false, err
	}
	all, queued := tx.Queued(who)
	done = queued && len(leases) == 0
	if now.BootID == "" || all >= maxQueued {
		return nil, done, nil
	}
	for _, l := range leases {
		hold, ok := tx.HoldAfter(l, now)
		if !ok || l.IsImported() || l.Holder.BootID != now.BootID {
			return nil, done, nil
		}
		holds = append(holds, hold)
	}
	return holds, done, nil
}

// applyQueue applies the queued DELs, and returns those that are over.
func (n *Node) applyQueue(c *Call) (done []rundir.QueuedDEL, err error) {
	queued, err := n.Store.Run().QueuedDELs(c.Now.BootID)
	if err != nil {
		n.Warnf("%v", err)
	}
	waiting := map[string][]rundir.QueuedDEL{} // by the reason
	for _, r := range queued {
		if r.Stale {
			done = append(done, r)
			continue
		}
		switch err := c.applyOne(r); {
		case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrBusy):
			waiting[err.Error()] = append(waiting[err.Error()], r)
		case err != nil:
			return nil, err
		default:
			done = append(done, r)
		}
	}
	for why, r := range waiting {
		more := ""
		if len(r) > 1 {
			more = fmt.Sprintf(", and %d more", len(r)-1)
		}
		n.Warnf("the DEL of container %s has to wait%s: %s", r[0].ContainerID, more, why)
	}
	return done, nil
}

func (c *Call) applyOne(r rundir.QueuedDEL) error {
	found, all, err := c.Release(r.Attachment, lease.Pool{}, r.At, "DEL")
	p := r.Pool()
	if all || err != nil || !hostlocal.Exists(p) {
		return err
	}
	names := Names(r.Attachment)
	hasEnded := func(f addressFile) bool { return names(f.Content) && f.isEndedBy(r.At) }
	if err := c.importFiles(p, c.node.FilesOf(p, names), hasEnded); err != nil {
		return err
	}
	if found {
		p = lease.Pool{}
	}
	_, _, err = c.Release(r.Attachment, p, r.At, "DEL")
	return err
}

// isEndedBy reports whether a DEL at a time is one of the container that host-local has written the
// file for. Otherwise the file may be of an ADD that follows the DEL.
func (f addressFile) isEndedBy(at lease.Instant) bool {
	return f.Modified.Before(at.Wall) || f.of.Life == lease.Dead
}

// Release releases the leases that an attachment had at the time of its DEL. It reports whether it
// has found any, and whether these are all: not imported, of this boot, and with files that name
// the attachment. Otherwise host-local may have served calls for it. A lease that was made of what
// the host shows was bound at an unknown time, which its file tells. in is the pool of the DEL
// (store.Tx.ByAttachment); it is zero if it is unknown, or if the attachment had leases of its own.
func (c *Call) Release(who lease.Attachment, in lease.Pool, at lease.Instant, reason string) (found, all bool,
	err error) {
	leases, err := c.Tx.ByAttachment(who, in)
	if err != nil {
		return false, false, err
	}
	found = len(leases) > 0
	all = found
	for _, l := range leases {
		f, err := c.read(l.Place(), l)
		if errors.Is(err, store.ErrBusy) {
			return found, false, err
		}
		all = all && f.says != saysOther && f.says != saysNothing && !l.IsImported() &&
			!l.OfEarlierBoot(c.Now.BootID)
		if l.BoundAt.IsAfter(at) {
			f.of = c.sourcesOf(l.Pool).Named(l.Pool, l.Address, f.File)
			if !l.IsImported() || c.files.open[l.Pool].dir == nil || !f.isEndedBy(at) {
				continue
			}
		}
		if _, err := c.End(l, lease.Release{Holder: l.Holder}, at, reason); err != nil {
			return found, all, err
		}
	}
	return found, all, nil
}
