package store

import "github.com/leasehold-cni/leasehold/pkg/lease"

// waiting are the spooled DELs as a View shows them: as done. The next Update replays them before
// anything else, so what a View shows is what the next call finds.
type waiting struct {
	all    int                       // spooled DELs, also those that are not shown
	done   map[lease.Attachment]bool // those that are shown
	holds  map[string]lease.Lease    // the leases after the DELs, by their keys in the bucket leases
	counts map[string]countChange    // by the keys of the bucket sets
}

// countChange is what waiting DELs add to the Counts of a range set.
type countChange struct{ bound, firm, soft int }

func (d countChange) addTo(c Counts) Counts {
	sum := func(n uint32, by int) uint32 { return uint32(max(int(n)+by, 0)) }
	return Counts{sum(c.Bound, d.bound), sum(c.Firm, d.firm), sum(c.Soft, d.soft)}
}

// HoldAfter returns the hold that a DEL of the holder at a time makes of a bound lease. It reports
// false if the DEL makes none, or if limits of holds decide which: then the DELs of several holders
// count in their order, which a power cut must not change.
func (tx *Tx) HoldAfter(l lease.Lease, at lease.Instant) (hold lease.Lease, ok bool) {
	limited := l.Window > 0 && (l.HeldLimit != 0 || len(tx.Limits()) > 0)
	if l.State != lease.Bound || limited || l.BoundAt.IsAfter(at) {
		return lease.Lease{}, false
	}
	hold, err := lease.Apply(l, lease.Release{Holder: l.Holder}, at)
	return hold, err == nil && hold.State == lease.Held
}

// showSpooled has the transaction, of a View, show the spooled DELs as done. It leaves out those
// that only a call can process: of damaged records, and where HoldAfter reports false.
func (s *Store) showSpooled(tx *Tx) {
	spooled, err := s.Spooled("")
	if err != nil || len(spooled) == 0 {
		return // Survey reports the error
	}
	w := waiting{len(spooled), map[lease.Attachment]bool{}, map[string]lease.Lease{}, map[string]countChange{}}
	for _, r := range spooled {
		leases, err := tx.ByHolder(r.ContainerID, r.IfName)
		if err != nil {
			continue
		}
		for _, l := range leases {
			at := r.At
			at.BootID = l.Holder.BootID // the spool does not outlive a boot
			if hold, ok := tx.HoldAfter(l, at); ok {
				w.done[lease.Attachment{ContainerID: r.ContainerID, IfName: r.IfName}] = true
				w.add(tx.pools[l.Pool], l, hold)
			}
		}
	}
	tx.waiting = w
}

func (w waiting) add(id poolID, l, hold lease.Lease) {
	k, set := string(leaseKey(id, l.Address)), string(setKey(id, l.Set))
	if _, known := w.holds[k]; known {
		return // a repeated DEL
	}
	w.holds[k] = hold
	d := w.counts[set]
	d.bound--
	if hold.Firm {
		d.firm++
	} else {
		d.soft++
	}
	w.counts[set] = d
}

// Spooled returns how many DELs are spooled, and whether a View shows one of the given attachment
// as done.
func (tx *Tx) Spooled(who lease.Attachment) (all int, done bool) {
	return tx.waiting.all, tx.waiting.done[who]
}
