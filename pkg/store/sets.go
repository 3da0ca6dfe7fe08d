package store

import (
	"encoding/binary"
	"net/netip"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Counts are the leases that were taken from one range set.
//
// Invariant: each is the number of leases in the pool with that Set and state;
// Check recomputes them.
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

// Cursor returns the address that was last handed out of a range set, the zero
// address at first. It belongs to the set's content, not to its place in the
// configuration.
func (tx *Tx) Cursor(p lease.Pool, set string) netip.Addr {
	return tx.readSet(tx.pools[p], set).cursor
}

// SetCursor moves it.
func (tx *Tx) SetCursor(p lease.Pool, set string, a netip.Addr) error {
	id, err := tx.poolID(p)
	if err != nil {
		return err
	}
	r := tx.readSet(id, set)
	r.cursor = a
	return tx.writeSet(id, set, r)
}

// Counts returns how many leases a range set has.
func (tx *Tx) Counts(p lease.Pool, set string) Counts {
	return tx.readSet(tx.pools[p], set).counts
}

// Totals adds up the counts of each network. It costs a look at the sets, however
// many leases there are.
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

// count returns where a lease is counted, nil for none.
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
