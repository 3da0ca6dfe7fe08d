package hostlocal

import (
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// History is what the store's journal has about one address.
type History struct {
	Owners []lease.Attachment // to which leasehold has assigned the address
	Last   time.Time          // of the last entry about the address
}

// IsForeign reports whether the file of a lease's address names another container, because
// host-local has assigned the address to that container. boot is the id of this boot, "" if it
// cannot be read.
//
// history and isLive are called only if they are needed. history returns the journal's history of
// the address. isLive reports whether libcni's cache shows that the container in the file is alive.
func (f File) IsForeign(l lease.Lease, boot string, history func() History, isLive func() bool) bool {
	switch {
	case f.Content == "": // leasehold's write was cut off by a power cut
		return false
	case IsHold(f.Content), Names(f.Content, l.Holder.ContainerID, l.Holder.IfName):
		return false
	case f.IsStale(history()):
		return false
	}
	return !f.isOlder(l, boot) || isLive()
}

// IsStale reports whether the file is a former version that came back with a power cut, because
// these files are not synced: it names a container to which leasehold has assigned the address, and
// it is older than the last journal entry about the address. The journal goes back further than the
// time for which a file system keeps changes only in memory.
func (f File) IsStale(h History) bool {
	named := func(o lease.Attachment) bool { return Names(f.Content, o.ContainerID, o.IfName) }
	return f.Modified.Before(h.Last) && slices.ContainsFunc(h.Owners, named)
}

// isOlder reports whether the lease was bound or released in an earlier boot, after the file was
// written, so that the file came back with a power cut. In the same boot no file comes back, and
// the clock may have been set back since. The result may be wrong if the clock was wrong after the
// boot; then libcni's cache may show that the file's container is alive (isLive of IsForeign).
func (f File) isOlder(l lease.Lease, boot string) bool {
	before := func(at lease.Instant) bool {
		return boot != "" && at.BootID != "" && at.BootID != boot && f.Modified.Before(at.Wall)
	}
	return before(l.BoundAt) || before(l.ReleasedAt)
}
