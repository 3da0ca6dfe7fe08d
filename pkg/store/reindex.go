package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	berrors "go.etcd.io/bbolt/errors"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Reindex builds every index again from the records. A record whose key is damaged gets the key of
// its address again. Cursors and ranges are not changed, except that damaged ones are removed; the
// next ADD writes them.
func (tx *Tx) Reindex() error {
	if err := tx.rekey(); err != nil {
		return err
	}
	for _, name := range indexes {
		tx.dirty = true
		err := tx.b.DeleteBucket(name)
		if err == nil || err == berrors.ErrBucketNotFound {
			_, err = tx.b.CreateBucket(name)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrIO, err)
		}
	}
	sets := map[string]setRecord{}
	for k, v := range tx.prefixed(bucketSets, nil) {
		r, _ := decodeSet(v, string(k[4:]))
		r.Counts = Counts{}
		sets[string(k)] = r
	}
	for _, k := range slices.Sorted(maps.Keys(sets)) {
		if err := tx.writeSet(poolID(binary.BigEndian.Uint32([]byte(k))), k[4:], sets[k]); err != nil {
			return err
		}
	}
	var leases []lease.Lease
	for l, err := range tx.All {
		if err == nil {
			leases = append(leases, l)
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

// rekey gives the records whose keys are not those of their addresses these keys, unless another
// record has the key.
func (tx *Tx) rekey() error {
	type move struct{ from, to, record []byte }
	var moves []move
	for k, v := range tx.prefixed(bucketLeases, nil) {
		if len(k) < 4 {
			continue
		}
		id := poolID(binary.BigEndian.Uint32(k))
		l, err := decodeLease(v, tx.names[id])
		if err != nil {
			continue
		}
		to := leaseKey(id, l.Address)
		if tx.bucket(bucketLeases).Get(to) == nil {
			moves = append(moves, move{bytes.Clone(k), to, bytes.Clone(v)})
		}
	}
	for _, m := range moves {
		if err := errors.Join(tx.delete(bucketLeases, m.from), tx.put(bucketLeases, m.to, m.record)); err != nil {
			return err
		}
	}
	return nil
}
