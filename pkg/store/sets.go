package store

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Counts are the numbers of leases of one range set by state. Check verifies them.
type Counts struct{ Bound, Firm, Soft uint32 }

type setRecord struct {
	cursor netip.Addr
	counts Counts
}

func setKey(id poolID, set string) []byte { return append(id.prefix(), set...) }

func (tx *Tx) readSet(id poolID, set string) setRecord {
	v := tx.bucket(bucketSets).Get(setKey(id, set))
	if len(v) < 12 {
		return setRecord{}
	}
	be := binary.BigEndian
	r := setRecord{counts: Counts{be.Uint32(v), be.Uint32(v[4:]), be.Uint32(v[8:])}}
	r.cursor, _ = addrOf(v[12:])
	return r
}

func (tx *Tx) writeSet(id poolID, set string, r setRecord) error {
	be := binary.BigEndian
	v := be.AppendUint32(be.AppendUint32(be.AppendUint32(nil, r.counts.Bound), r.counts.Firm), r.counts.Soft)
	if r.cursor.IsValid() {
		v = appendAddr(v, r.cursor)
	}
	return tx.put(bucketSets, setKey(id, set), v)
}

// Cursor returns the last address that was assigned from a range set, the zero address if there is
// none. A set is identified by its content, not by its position in the configuration.
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

// LeaseCount returns how many leases a pool has. It reads only the bucket sets, not the leases.
func (tx *Tx) LeaseCount(p lease.Pool) int {
	id, ok := tx.pools[p]
	if !ok {
		return 0
	}
	sum := 0
	c := tx.bucket(bucketSets).Cursor()
	for k, _ := c.Seek(id.prefix()); k != nil && bytes.HasPrefix(k, id.prefix()); k, _ = c.Next() {
		counts := tx.readSet(id, string(k[4:])).counts
		sum += int(counts.Bound) + int(counts.Firm) + int(counts.Soft)
	}
	return sum
}

// Totals returns the sum of the counts for each network. It reads only the bucket sets, not the
// leases.
func (tx *Tx) Totals() map[string]Counts {
	out := map[string]Counts{}
	_ = tx.bucket(bucketSets).ForEach(func(k, _ []byte) error {
		if len(k) < 4 {
			return nil
		}
		id := poolID(binary.BigEndian.Uint32(k))
		if p, ok := tx.names[id]; ok {
			sum, c := out[p.Network], tx.readSet(id, string(k[4:])).counts
			out[p.Network] = Counts{sum.Bound + c.Bound, sum.Firm + c.Firm, sum.Soft + c.Soft}
		}
		return nil
	})
	return out
}

// of returns the count that includes a lease, nil if none does.
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
	n := r.counts.of(l)
	if n == nil {
		return nil
	}
	*n = uint32(max(int(*n)+by, 0))
	return tx.writeSet(id, l.Set, r)
}
