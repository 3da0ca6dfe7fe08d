package hostlocal

import (
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Owner is whom a file names. IfName is "" in files of host-local before v0.8.0.
type Owner struct{ ContainerID, IfName string }

// History is what the store's journal says of one address.
type History struct {
	Owners []Owner   // to whom we gave it
	Last   time.Time // time of its last entry
}

// IsForeign reports whether the file of a lease's address names another container, to which
// host-local has given the address. Boot is the id of this boot, "" if it cannot be read. History
// is called only if it matters, and so is isLive, which reports whether the container that the file
// names lives by libcni's cache.
func (f File) IsForeign(l lease.Lease, boot string, history func() History, isLive func() bool) bool {
	switch {
	case f.Content == "": // a write of ours that was cut off
		return false
	case IsHold(f.Content), Names(f.Content, l.Holder.ContainerID, l.Holder.IfName):
		return false
	case f.IsStale(history()):
		return false
	}
	return !f.isOlder(l, boot) || isLive()
}

// IsStale reports whether the file names a container to which we gave the address, and is older
// than the last that the journal says of the address: then a power cut has brought it back, because
// these files are never synced. The journal goes back much further than a file system leaves things
// unwritten.
func (f File) IsStale(h History) bool {
	named := func(o Owner) bool { return Names(f.Content, o.ContainerID, o.IfName) }
	return f.Modified.Before(h.Last) && slices.ContainsFunc(h.Owners, named)
}

// isOlder reports whether the file was written before its lease was bound or released in an earlier
// boot: a power cut has brought it back. Within a boot nothing brings one back, and the clock may
// have been set back since. Where the clock was wrong after the boot, libcni's cache may know that
// the file's container lives.
func (f File) isOlder(l lease.Lease, boot string) bool {
	before := func(at lease.Instant) bool {
		return boot != "" && at.BootID != "" && at.BootID != boot && f.Modified.Before(at.Wall)
	}
	return before(l.BoundAt) || before(l.ReleasedAt)
}
