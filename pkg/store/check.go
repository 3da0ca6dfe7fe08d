package store

import (
	"fmt"
	"net/netip"

	"github.com/leasehold-cni/leasehold/pkg/boltfile"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Check verifies the file: its pages, the checksum and the invariants of every record, and that
// each index matches the records. It returns one sentence for each problem, and changes nothing.
// Queued DELs do not count.
func (tx *Tx) Check() []string {
	defer func(q map[string]lease.Lease) { tx.queued = q }(tx.queued)
	tx.queued = nil

	if wrong := boltfile.Prove(tx.b.DB().Path()); wrong != nil {
		return []string{"pages: " + wrong.Error()} // reading the rest could follow damaged pages
	}
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	type owner struct {
		lease.Key
		set string
	}
	owned := map[owner]netip.Addr{}
	filed, counts := map[string]int{}, map[string]Counts{} // entries by index, counts by set
	for k := range tx.prefixed(bucketLeases, nil) {
		l, err := tx.at(k)
		if err != nil {
			report("%v", err)
			continue
		}
		id, _, _ := splitLease(k)
		if _, free := tx.Free(l.Pool, l.Address, l.Address); free {
			report("index taken: %s is missing", l.Address)
		}
		for _, e := range entries(id, k, l) {
			if in, _ := tx.bucket([]byte(e.bucket)).Cursor().Seek([]byte(e.key)); string(in) == e.key {
				filed[e.bucket]++
			} else {
				report("index %s: the entry of %s is missing", e.bucket, l.Address)
			}
		}
		sk := string(setKey(id, l.Set))
		c := counts[sk]
		*c.of(l)++
		counts[sk] = c
		// A reservation name may have several addresses of one range set.
		if of := (owner{l.Key(), l.Set}); l.IsRetained() && l.ReserveAs == "" && l.Set != "" {
			if other, ok := owned[of]; ok {
				report("%s/%s has both %s and %s of one range set", l.Namespace, l.Name, other, l.Address)
			}
			owned[of] = l.Address
		}
	}
	tx.Unrecorded(func(_ lease.Pool, a netip.Addr) { report("index taken: %s has no lease", a) })
	for _, name := range indexes {
		n := -filed[string(name)]
		for range tx.prefixed(name, nil) {
			n++
		}
		if n != 0 {
			report("index %s: %d entries have no lease", name, n)
		}
	}
	return append(found, tx.compareCounts(counts)...)
}

// compareCounts returns a sentence for each range set whose counts, cursor or ranges are wrong.
func (tx *Tx) compareCounts(want map[string]Counts) []string {
	var found []string
	for k, v := range tx.prefixed(bucketSets, nil) {
		r, ok := decodeSet(v)
		if r.counts != want[string(k)] {
			found = append(found, fmt.Sprintf("set %s: counts are %+v, but the leases add up to %+v",
				k[4:], r.counts, want[string(k)]))
		}
		if !ok || !r.hasRangesOf(string(k[4:])) {
			found = append(found, fmt.Sprintf("set %s: its cursor or its ranges are damaged", k[4:]))
		}
		delete(want, string(k))
	}
	for k := range want {
		found = append(found, fmt.Sprintf("set %q: has leases but no counts", k[4:]))
	}
	return found
}
