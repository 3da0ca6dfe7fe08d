package store

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	berrors "go.etcd.io/bbolt/errors"
)

// Reindex builds every index again from the records. The address of a damaged record stays taken.
// Cursors and ranges are not changed, except that damaged ones are removed; the next ADD writes
// them.
func (tx *Tx) Reindex() error {
	want := newExpected()
	for k := range tx.prefixed(bucketLeases, nil) {
		id, addr, ok := splitLease(k)
		if !ok {
			continue
		}
		if l, err := tx.at(k); err == nil {
			want.add(id, k, l)
		} else {
			want.take(id, addr)
		}
	}
	for name, entries := range want.index {
		if err := tx.refill([]byte(name), entries); err != nil {
			return err
		}
	}
	return tx.refillCounts(want.counts)
}

func (tx *Tx) refill(bucket []byte, entries map[string][]byte) error {
	tx.dirty = true
	err := tx.b.DeleteBucket(bucket)
	if err == nil || err == berrors.ErrBucketNotFound {
		_, err = tx.b.CreateBucket(bucket)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	for _, k := range slices.Sorted(maps.Keys(entries)) {
		if err := tx.put(bucket, []byte(k), entries[k]); err != nil {
			return err
		}
	}
	return nil
}

func (tx *Tx) refillCounts(counts map[string]Counts) error {
	for k := range tx.prefixed(bucketSets, nil) {
		if _, ok := counts[string(k)]; !ok {
			counts[string(k)] = Counts{}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		id, set := poolID(binary.BigEndian.Uint32([]byte(k))), k[4:]
		r := tx.readSet(id, set)
		r.counts = counts[k]
		if !r.hasRangesOf(set) {
			r.configured = nil
		}
		if err := tx.writeSet(id, set, r); err != nil {
			return err
		}
	}
	return nil
}
