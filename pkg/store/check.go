package store

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Check verifies the file: its pages, the checksum and the invariants of every record, and that
// each index matches the records. It returns one sentence for each problem, and changes nothing.
// Spooled DELs do not count.
func (tx *Tx) Check() []string {
	defer func(w waiting) { tx.waiting = w }(tx.waiting)
	tx.waiting = waiting{}

	if wrong := prove(tx.b.DB().Path()); wrong != "" {
		return []string{"pages: " + wrong} // reading the rest could follow damaged pages
	}
	var found []string
	want := newExpected()
	for k := range tx.prefixed(bucketLeases, nil) {
		l, err := tx.at(k)
		if err != nil {
			found = append(found, err.Error())
			if id, addr, ok := splitLease(k); ok {
				want.take(id, addr) // its address must not be assigned
			}
			continue
		}
		id, _, _ := splitLease(k)
		if _, ok := tx.names[id]; !ok {
			found = append(found, fmt.Sprintf("%s: unknown pool %d", l.Address, id))
		}
		want.add(id, k, l)
	}
	found = append(found, want.oneOwner()...)
	for _, b := range [][]byte{bucketHolders, bucketKeys, bucketExpiry, bucketTaken} {
		found = append(found, tx.compare(b, want.index[string(b)])...)
	}
	return append(found, tx.compareCounts(want)...)
}

// expected is the content that the indexes must have, computed from the records.
type expected struct {
	index  map[string]map[string][]byte // bucket -> key -> value
	counts map[string]Counts            // set key -> counts
	owned  map[lease.Key][]lease.Lease
}

func newExpected() *expected {
	e := &expected{index: map[string]map[string][]byte{}, counts: map[string]Counts{},
		owned: map[lease.Key][]lease.Lease{}}
	for _, b := range [][]byte{bucketHolders, bucketKeys, bucketExpiry, bucketTaken} {
		e.index[string(b)] = map[string][]byte{}
	}
	return e
}

// add adds the index entries of a lease. k is its key in the bucket leases.
func (e *expected) add(id poolID, k []byte, l lease.Lease) {
	for _, n := range entries(id, k, l) {
		if n.key != nil {
			e.index[string(n.bucket)][string(n.key)] = nil
		}
	}
	e.take(id, l.Address)

	sk := string(setKey(id, l.Set))
	c := e.counts[sk]
	*c.of(l)++
	e.counts[sk] = c
	if key := l.Key(); !key.IsZero() && (l.State == lease.Bound && l.Window > 0 || l.Firm) {
		e.owned[key] = append(e.owned[key], l)
	}
}

// take sets the bit of an address in the bitmaps of taken addresses.
func (e *expected) take(id poolID, a netip.Addr) {
	base, bit := chunkOf(a)
	ck := string(leaseKey(id, base))
	bits := e.index[string(bucketTaken)][ck]
	if bits == nil {
		bits = make([]byte, chunkBytes)
		e.index[string(bucketTaken)][ck] = bits
	}
	bits[bit/8] |= 1 << (bit % 8)
}

// oneOwner verifies that a pod's key has at most one address, bound or firmly held, in each range
// set. A reservation name may have several.
func (e *expected) oneOwner() []string {
	var found []string
	for key, leases := range e.owned {
		if key.Reservation != "" {
			continue
		}
		seen := map[string]lease.Lease{}
		for _, l := range leases {
			if o, ok := seen[l.Set]; ok && l.Set != "" {
				found = append(found, fmt.Sprintf("%s/%s has both %s and %s of one range set",
					key.Namespace, key.Name, o.Address, l.Address))
			}
			seen[l.Set] = l
		}
	}
	slices.Sort(found)
	return found
}

// compare returns a sentence for each difference between an index and what it must contain.
func (tx *Tx) compare(bucket []byte, want map[string][]byte) []string {
	var found []string
	seen := 0
	for k, v := range tx.prefixed(bucket, nil) {
		w, ok := want[string(k)]
		if !ok {
			found = append(found, fmt.Sprintf("index %s: %q has no lease", bucket, k))
			continue
		}
		seen++
		if len(w) > 0 && !bytes.Equal(w, v) {
			found = append(found, fmt.Sprintf("index %s: %x does not match the leases", bucket, k))
		}
	}
	if seen < len(want) {
		found = append(found, fmt.Sprintf("index %s: %d of %d entries are missing", bucket, len(want)-seen, len(want)))
	}
	return found
}

// compareCounts returns a sentence for each range set whose counts, cursor or ranges are wrong.
func (tx *Tx) compareCounts(want *expected) []string {
	var found []string
	for k, v := range tx.prefixed(bucketSets, nil) {
		r, ok := decodeSet(v)
		if r.counts != want.counts[string(k)] {
			found = append(found, fmt.Sprintf("set %s: counts are %+v, but the leases add up to %+v",
				k[4:], r.counts, want.counts[string(k)]))
		}
		if !ok || !r.hasRangesOf(string(k[4:])) {
			found = append(found, fmt.Sprintf("set %s: its cursor or its ranges are damaged", k[4:]))
		}
		delete(want.counts, string(k))
	}
	for k := range want.counts {
		found = append(found, fmt.Sprintf("set %q: has leases but no counts", k[4:]))
	}
	return found
}
