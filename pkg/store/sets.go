package store

import (
	"bytes"
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// Counts are the numbers of leases of one range set by state. Check verifies those in the bucket
// sets, which do not show queued DELs.
type Counts struct{ Bound, Held, CoolDown uint64 }

// setRecord is the record of a range set:
//
//	bound, held, in cool-down    4 bytes each
//	cursor               family byte and address; if there is none, nothing or the byte 0
//	size                 8 bytes, see SetRanges; what follows the cursor is only there if it is configured
//	ranges               family byte, then the first and the last address of each range
type setRecord struct {
	cursor     netip.Addr
	counts     Counts
	configured []byte // size and ranges, as stored; nil if the set is not configured
}

const countBytes = 12

func setKey(id poolID, set string) []byte { return append(id.prefix(), set...) }

func (tx *Tx) readSet(id poolID, set string) setRecord {
	r, _ := decodeSet(tx.bucket(bucketSets).Get(setKey(id, set)))
	return r
}

// decodeSet decodes the record of a range set. If it reports false, the record is not valid after
// the parts that are returned.
func decodeSet(v []byte) (r setRecord, ok bool) {
	if len(v) < countBytes {
		return r, v == nil
	}
	be := binary.BigEndian
	r.counts = Counts{uint64(be.Uint32(v)), uint64(be.Uint32(v[4:])), uint64(be.Uint32(v[8:]))}
	v = v[countBytes:]
	if len(v) == 0 {
		return r, true
	}
	size, known := map[byte]int{0: 1, 4: 5, 6: 17}[v[0]]
	if !known || len(v) < size {
		return r, false
	}
	if size > 1 {
		r.cursor, _ = addrOf(v[:size])
	}
	if v = v[size:]; len(v) > 0 {
		r.configured = v
	}
	return r, true
}

func (tx *Tx) writeSet(id poolID, set string, r setRecord) error {
	be := binary.BigEndian
	v := be.AppendUint32(nil, uint32(r.counts.Bound))
	v = be.AppendUint32(be.AppendUint32(v, uint32(r.counts.Held)), uint32(r.counts.CoolDown))
	switch {
	case r.cursor.IsValid():
		v = appendAddr(v, r.cursor)
	case r.configured != nil:
		v = append(v, 0)
	}
	return tx.put(bucketSets, setKey(id, set), append(v, r.configured...))
}

// eachSet returns the range sets of a pool that have a record.
func (tx *Tx) eachSet(id poolID) iter.Seq2[string, setRecord] {
	return func(yield func(set string, r setRecord) bool) {
		for k := range tx.prefixed(bucketSets, id.prefix()) {
			set := string(k[4:])
			if !yield(set, tx.readSet(id, set)) {
				return
			}
		}
	}
}

// SetRanges records the range sets of a pool's configuration, with their ranges and sizes, for
// Usage. Sets that were configured before and are not in the list lose their ranges. If nothing has
// changed, nothing is written. Each ADD calls it.
func (tx *Tx) SetRanges(p lease.Pool, sets []pool.Set) error {
	id, err := tx.poolID(p)
	if err != nil {
		return err
	}
	want := map[string][]byte{}
	for _, s := range sets {
		want[s.ID()] = encodeRanges(s)
	}
	changed := map[string]setRecord{}
	for set, r := range tx.eachSet(id) {
		if !bytes.Equal(r.configured, want[set]) {
			r.configured = want[set]
			changed[set] = r
		}
		delete(want, set)
	}
	for set, configured := range want {
		changed[set] = setRecord{configured: configured}
	}
	for _, set := range slices.Sorted(maps.Keys(changed)) {
		if err := tx.writeSet(id, set, changed[set]); err != nil {
			return err
		}
	}
	return nil
}

// Ranges returns the range sets that SetRanges recorded for a pool, with the first and the last
// address of each range.
func (tx *Tx) Ranges(p lease.Pool) (sets []pool.Set) {
	for _, r := range tx.eachSet(tx.pools[p]) {
		if _, ranges, ok := decodeRanges(r.configured); ok {
			sets = append(sets, ranges)
		}
	}
	return sets
}

// CacheDirs returns the directories of libcni's cache that SetCacheDirs recorded for a pool.
func (tx *Tx) CacheDirs(p lease.Pool) []string {
	text := tx.poolText(metaCaches, p)
	if text == "" {
		return nil
	}
	return strings.Split(text, "\x00")
}

// SetCacheDirs records the directories of libcni's cache that the configuration of a pool names,
// for programs that do not read it. If nothing has changed, nothing is written. Each ADD calls it.
func (tx *Tx) SetCacheDirs(p lease.Pool, dirs []string) error {
	return tx.setPoolText(metaCaches, p, strings.Join(dirs, "\x00"))
}

// Link returns what SetLink recorded for a pool, "" if nothing.
func (tx *Tx) Link(p lease.Pool) string { return tx.poolText(metaLink, p) }

// SetLink records the type of the interface plugin of a pool and its device, such as "macvlan
// eth1", if pods of other nodes may be on the same link; "" otherwise. If nothing has changed,
// nothing is written. Each ADD calls it.
func (tx *Tx) SetLink(p lease.Pool, link string) error { return tx.setPoolText(metaLink, p, link) }

func (tx *Tx) poolText(key []byte, p lease.Pool) string {
	return string(tx.bucket(bucketMeta).Get(slices.Concat(key, tx.pools[p].prefix())))
}

func (tx *Tx) setPoolText(key []byte, p lease.Pool, text string) error {
	if text == tx.poolText(key, p) {
		return nil
	}
	id, err := tx.poolID(p)
	if err != nil {
		return err
	}
	return tx.put(bucketMeta, slices.Concat(key, id.prefix()), []byte(text))
}

func encodeRanges(s pool.Set) []byte {
	b := appendAddr(binary.BigEndian.AppendUint64(nil, s.Size()), s[0].Start)
	b = append(b, s[0].End.AsSlice()...)
	for _, r := range s[1:] {
		b = append(append(b, r.Start.AsSlice()...), r.End.AsSlice()...)
	}
	return b
}

// decodeRanges is the inverse of encodeRanges, without the parts of a range that are not stored: it
// returns only the first and the last address of each. It reports false if b is not valid.
func decodeRanges(b []byte) (size uint64, ranges pool.Set, ok bool) {
	if len(b) <= 9 || b[8] != 4 && b[8] != 6 {
		return 0, nil, false
	}
	size, b, n := min(binary.BigEndian.Uint64(b), pool.MaxSize), b[9:], map[byte]int{4: 4, 6: 16}[b[8]]
	if len(b)%(2*n) != 0 {
		return 0, nil, false
	}
	for ; len(b) > 0; b = b[2*n:] {
		first, _ := netip.AddrFromSlice(b[:n])
		last, _ := netip.AddrFromSlice(b[n : 2*n])
		ranges = append(ranges, pool.Range{Start: first, End: last})
	}
	return size, ranges, true
}

// Cursor returns the last address that was assigned from a range set, or the zero address if there
// is none. set is the set's pool.Set.ID.
func (tx *Tx) Cursor(p lease.Pool, set string) netip.Addr {
	return tx.readSet(tx.pools[p], set).cursor
}

// SetCursor sets the address that Cursor returns.
func (tx *Tx) SetCursor(p lease.Pool, set string, a netip.Addr) error {
	id, err := tx.poolID(p)
	if err != nil {
		return err
	}
	r := tx.readSet(id, set)
	r.cursor = a
	return tx.writeSet(id, set, r)
}

// Counts returns the counts of a range set.
func (tx *Tx) Counts(p lease.Pool, set string) Counts {
	return tx.readSet(tx.pools[p], set).counts
}

// of returns a pointer to the count that includes a lease, or nil if none does.
func (c *Counts) of(l lease.Lease) *uint64 {
	switch {
	case l.State == lease.Bound:
		return &c.Bound
	case l.State == lease.Held && l.IsHold:
		return &c.Held
	case l.State == lease.Held:
		return &c.CoolDown
	}
	return nil
}

// count adds to the count that includes a lease.
func (tx *Tx) count(id poolID, l lease.Lease, by int) error {
	r := tx.readSet(id, l.Set)
	n := r.counts.of(l)
	if n == nil {
		return nil
	}
	*n = uint64(max(int(*n)+by, 0))
	return tx.writeSet(id, l.Set, r)
}
