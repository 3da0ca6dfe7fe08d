package store

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// Counts are the numbers of leases of one range set by state. Check verifies those in the bucket
// sets, which do not show spooled DELs.
type Counts struct{ Bound, Firm, Soft uint32 }

// setRecord is the record of a range set, in JSON.
type setRecord struct {
	Counts Counts
	Cursor netip.Addr `json:",omitzero"`
	Ranges pool.Set   `json:",omitempty"` // nil if the set is not configured
}

func setKey(id poolID, set string) []byte { return append(id.prefix(), set...) }

func (tx *Tx) readSet(id poolID, set string) setRecord {
	r, _ := decodeSet(tx.bucket(bucketSets).Get(setKey(id, set)), set)
	return r
}

// decodeSet decodes the record of a range set, whose ID is a hash of its ranges. It returns a zero
// record and false for a damaged one.
func decodeSet(v []byte, set string) (r setRecord, ok bool) {
	if v == nil {
		return r, true
	}
	err := json.Unmarshal(v, &r)
	if err != nil || r.Ranges != nil && r.Ranges.ID() != set {
		return setRecord{}, false
	}
	return r, true
}

func (tx *Tx) writeSet(id poolID, set string, r setRecord) error {
	v, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("range set %s: %w", set, err)
	}
	return tx.put(bucketSets, setKey(id, set), v)
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

// SetRanges records the range sets of a pool's configuration for Usage. Sets that were configured
// before and are not in the list lose their ranges. If nothing has changed, nothing is written.
// Each ADD calls it.
func (tx *Tx) SetRanges(p lease.Pool, sets []pool.Set) error {
	id, err := tx.poolID(p)
	if err != nil {
		return err
	}
	want := map[string]pool.Set{}
	for _, s := range sets {
		want[s.ID()] = s
	}
	changed := map[string]setRecord{}
	for set, r := range tx.eachSet(id) {
		if !slices.Equal(r.Ranges, want[set]) {
			r.Ranges = want[set]
			changed[set] = r
		}
		delete(want, set)
	}
	for set, ranges := range want {
		changed[set] = setRecord{Ranges: ranges}
	}
	for _, set := range slices.Sorted(maps.Keys(changed)) {
		if err := tx.writeSet(id, set, changed[set]); err != nil {
			return err
		}
	}
	return nil
}

// Cursor returns the last address that was assigned from a range set, or the zero address if there
// is none. set is the set's pool.Set.ID.
func (tx *Tx) Cursor(p lease.Pool, set string) netip.Addr {
	return tx.readSet(tx.pools[p], set).Cursor
}

// SetCursor sets the address that Cursor returns.
func (tx *Tx) SetCursor(p lease.Pool, set string, a netip.Addr) error {
	id, err := tx.poolID(p)
	if err != nil {
		return err
	}
	r := tx.readSet(id, set)
	r.Cursor = a
	return tx.writeSet(id, set, r)
}

// Counts returns the counts of a range set.
func (tx *Tx) Counts(p lease.Pool, set string) Counts {
	return tx.readSet(tx.pools[p], set).Counts
}

// of returns a pointer to the count that includes a lease, or nil if none does.
func (c *Counts) of(l lease.Lease) *uint32 {
	switch {
	case l.State == lease.Bound:
		return &c.Bound
	case l.State == lease.Held && l.Firm:
		return &c.Firm
	case l.State == lease.Held:
		return &c.Soft
	}
	return nil
}

func (tx *Tx) recount(id poolID, old, next lease.Lease) error {
	if err := tx.count(id, old, -1); err != nil {
		return err
	}
	return tx.count(id, next, 1)
}

func (tx *Tx) count(id poolID, l lease.Lease, by int) error {
	r := tx.readSet(id, l.Set)
	n := r.Counts.of(l)
	if n == nil {
		return nil
	}
	*n = uint32(max(int(*n)+by, 0))
	return tx.writeSet(id, l.Set, r)
}
