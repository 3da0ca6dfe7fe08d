package store

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/record"
)

// stateField is the tag of a lease's state.
const stateField = 4

// leaseFields are the fields of a lease. New ones are added at the end.
var leaseFields = []record.Field[lease.Lease]{
	nil,
	func(l *lease.Lease) any { return &l.Address },
	func(l *lease.Lease) any { return &l.ID },
	func(l *lease.Lease) any { return &l.Set },
	func(l *lease.Lease) any { return (*int)(&l.State) },
	func(l *lease.Lease) any { return &l.Namespace },
	func(l *lease.Lease) any { return &l.Name },
	func(l *lease.Lease) any { return &l.UID },
	func(l *lease.Lease) any { return &l.Holder.ContainerID },
	func(l *lease.Lease) any { return &l.Holder.IfName },
	func(l *lease.Lease) any { return &l.Holder.Netns.Path },
	func(l *lease.Lease) any { return netnsFile{&l.Holder.Netns} },
	func(l *lease.Lease) any { return &l.Holder.BootID },
	func(l *lease.Lease) any { return &l.MAC },
	func(l *lease.Lease) any { return (*int64)(&l.Window) },
	func(l *lease.Lease) any { return (*int64)(&l.CoolDown) },
	func(l *lease.Lease) any { return &l.HeldLimit },
	func(l *lease.Lease) any { return instant{&l.BoundAt, l} },
	func(l *lease.Lease) any { return &l.IsHold },
	func(l *lease.Lease) any { return instant{&l.ReleasedAt, l} },
	func(l *lease.Lease) any { return (*int64)(&l.Hold) },
	func(l *lease.Lease) any { return &l.Superseded },
	func(l *lease.Lease) any { return instant{&l.RefusedAt, l} },
	func(l *lease.Lease) any { return &l.RefusedFor },
	func(l *lease.Lease) any { return (*int64)(&l.MaxWindow) },
	func(l *lease.Lease) any { return &l.Owner },
	func(l *lease.Lease) any { return &l.NamespaceUID },
	func(l *lease.Lease) any { return &l.ReserveAs },
	func(l *lease.Lease) any { return &l.Leaving },
}

// instant is both clocks, and the boot id if it differs from the holder's.
type instant struct {
	at *lease.Instant
	of *lease.Lease
}

func (i instant) Bytes() []byte {
	if i.at.IsZero() {
		return nil
	}
	return appendInstant(nil, *i.at, i.of.Holder.BootID)
}

func (i instant) Set(v []byte) (err error) {
	*i.at, err = parseInstant(v)
	return err
}

// netnsFile is the device and the inode of a namespace.
type netnsFile struct{ *lease.Netns }

func (n netnsFile) Bytes() []byte {
	if n.Ino == 0 {
		return nil
	}
	return binary.AppendUvarint(binary.AppendUvarint(nil, n.Dev), n.Ino)
}

func (n netnsFile) Set(v []byte) error {
	dev, i := binary.Uvarint(v)
	if i <= 0 {
		return fmt.Errorf("no device")
	}
	ino, m := binary.Uvarint(v[i:])
	if m != len(v)-i || m <= 0 {
		return fmt.Errorf("no inode")
	}
	n.Dev, n.Ino = dev, ino
	return nil
}

func appendInstant(b []byte, v lease.Instant, boot string) []byte {
	b = binary.AppendVarint(b, v.Wall.UnixNano())
	b = binary.AppendVarint(b, int64(v.Boot))
	if v.BootID != boot {
		b = append(append(b, 0), v.BootID...)
	}
	return b
}

// sameBoot stands for the holder's boot id until the record is decoded.
const sameBoot = "\x00"

func parseInstant(v []byte) (lease.Instant, error) {
	wall, n := binary.Varint(v)
	if n <= 0 {
		return lease.Instant{}, fmt.Errorf("no wall clock")
	}
	boot, m := binary.Varint(v[n:])
	if m <= 0 {
		return lease.Instant{}, fmt.Errorf("no boot clock")
	}
	i := lease.Instant{Wall: time.Unix(0, wall).UTC(), Boot: time.Duration(boot), BootID: sameBoot}
	if rest := v[n+m:]; len(rest) > 0 {
		if rest[0] != 0 {
			return lease.Instant{}, fmt.Errorf("no boot id")
		}
		i.BootID = string(rest[1:])
	}
	return i, nil
}

// stateOf returns the state in the record of a lease, without decoding the rest.
func stateOf(b []byte) (state lease.State, err error) {
	err = record.Each(b, func(tag uint64, value, _ []byte) error {
		if tag == stateField {
			return record.Set((*int)(&state), value)
		}
		return nil
	})
	return state, err
}

func encodeLease(l lease.Lease) []byte { return record.Encode(leaseFields, &l, l.Extra) }

// decodeLease decodes the record of a lease of a pool. The pool is part of the key, not of the
// record.
func decodeLease(b []byte, p lease.Pool) (lease.Lease, error) {
	l, extra, err := record.Decode(leaseFields, b)
	if err != nil {
		return lease.Lease{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	l.Pool, l.Extra = p, extra
	for _, i := range []*lease.Instant{&l.BoundAt, &l.ReleasedAt, &l.RefusedAt} {
		if i.BootID == sameBoot {
			i.BootID = l.Holder.BootID
		}
	}
	if err := l.Validate(); err != nil {
		return lease.Lease{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return l, nil
}

const poolBytes = 5 // 4 for the number of the pool, 1 for whether it was imported

// encodePool encodes an entry of the list of pools. The checksum includes the key, because with
// another name or number the pool would appear to have no leases.
func encodePool(p lease.Pool, id poolID, imported bool) []byte {
	v := append(id.prefix(), 0)
	if imported {
		v[poolBytes-1] = 1
	}
	return binary.BigEndian.AppendUint64(v, record.Checksum(append(poolKey(p), v...)))
}

// decodePool is the inverse of encodePool.
func decodePool(p lease.Pool, v []byte) (id poolID, imported bool, err error) {
	if len(v) != poolBytes+record.SumBytes {
		return 0, false, fmt.Errorf("%w: %d bytes", ErrDamaged, len(v))
	}
	v, sum := v[:poolBytes], binary.BigEndian.Uint64(v[poolBytes:])
	if record.Checksum(append(poolKey(p), v...)) != sum {
		return 0, false, fmt.Errorf("%w: checksum", ErrDamaged)
	}
	return poolID(binary.BigEndian.Uint32(v)), v[poolBytes-1] != 0, nil
}
