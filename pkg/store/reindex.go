package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Reindex builds every index again from the records. The address of a damaged record stays taken.
// Cursors and ranges are not changed, except that damaged ones are removed; the next ADD writes
// them.
func (tx *Tx) Reindex() error {
	for _, name := range append(slices.Clip(indexes), bucketTaken) {
		tx.dirty = true
		err := tx.b.DeleteBucket(name)
		if err == nil {
			_, err = tx.b.CreateBucket(name)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrIO, err)
		}
	}
	sets := map[string]setRecord{}
	for k, v := range tx.prefixed(bucketSets, nil) {
		r, _ := decodeSet(v)
		r.counts = Counts{}
		if !r.hasRangesOf(string(k[4:])) {
			r.configured = nil
		}
		sets[string(k)] = r
	}
	for _, k := range slices.Sorted(maps.Keys(sets)) {
		if err := tx.writeSet(poolID(binary.BigEndian.Uint32([]byte(k))), k[4:], sets[k]); err != nil {
			return err
		}
	}
	var leases []lease.Lease
	var damaged [][]byte
	for k := range tx.prefixed(bucketLeases, nil) {
		if l, err := tx.at(k); err == nil {
			leases = append(leases, l)
		} else if _, _, ok := splitLease(k); ok {
			damaged = append(damaged, bytes.Clone(k))
		}
	}
	for _, k := range damaged {
		if err := tx.setTaken(k, true); err != nil {
			return err
		}
	}
	for _, l := range leases {
		id := tx.pools[l.Pool]
		if err := tx.reindex(id, leaseKey(id, l.Address), lease.Lease{}, l); err != nil {
			return err
		}
	}
	return nil
}
