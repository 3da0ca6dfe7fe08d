package store

import (
	"cmp"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// HoldAfter returns the hold that a DEL of the holder at a time makes of a bound lease. It reports
// false if the DEL makes none, or if limits of holds decide which: then the DELs of several holders
// count in their order, which a power cut must not change.
func (tx *Tx) HoldAfter(l lease.Lease, at lease.Instant) (hold lease.Lease, ok bool) {
	limited := l.Window > 0 && (l.HeldLimit != 0 || len(tx.Limits()) > 0) && !l.OfEarlierBoot(at.BootID)
	if l.State != lease.Bound || limited || l.BoundAt.IsAfter(at) {
		return lease.Lease{}, false
	}
	hold, err := lease.Apply(l, lease.Release{Holder: l.Holder}, at)
	return hold, err == nil && hold.State == lease.Held
}

// showQueued has the transaction, of a View, show the queued DELs as applied: the next Update
// applies them before anything else, so that is what the next call finds. It leaves out those that
// only a call can apply: of damaged records, and where HoldAfter reports false.
func (s *Store) showQueued(tx *Tx) {
	dels, err := s.Run().QueuedDELs(s.BootID())
	if err != nil || len(dels) == 0 {
		return // Survey reports the error
	}
	tx.queued = map[string]lease.Lease{}
	for _, r := range dels {
		if r.Stale {
			continue
		}
		leases, _ := tx.ByHolder(r.ContainerID, r.IfName)
		for _, l := range leases {
			at := r.At
			at.BootID = cmp.Or(at.BootID, l.Holder.BootID)
			if hold, ok := tx.HoldAfter(l, at); ok {
				tx.queued[string(leaseKey(tx.pools[l.Pool], l.Address))] = hold
			}
		}
	}
}

// Queued returns how many leases a View shows as released by queued DELs, and whether it shows one
// of the given attachment so.
func (tx *Tx) Queued(who lease.Attachment) (all int, done bool) {
	for _, l := range tx.queued {
		done = done || l.Holder.Attachment() == who
	}
	return len(tx.queued), done
}
