package store

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/record"
)

// stateField is the tag of a lease's state.
const stateField = 4

// leaseFields are the fields of a lease. New ones are added at the end.
var leaseFields = []record.Field[lease.Lease]{
	{},
	record.Address(func(l *lease.Lease) *netip.Addr { return &l.Address }),
	record.Text(func(l *lease.Lease) *string { return &l.ID }),
	record.Text(func(l *lease.Lease) *string { return &l.Set }),
	record.Number(func(l *lease.Lease) *lease.State { return &l.State }),
	record.Text(func(l *lease.Lease) *string { return &l.Namespace }),
	record.Text(func(l *lease.Lease) *string { return &l.Name }),
	record.Text(func(l *lease.Lease) *string { return &l.UID }),
	record.Text(func(l *lease.Lease) *string { return &l.Holder.ContainerID }),
	record.Text(func(l *lease.Lease) *string { return &l.Holder.IfName }),
	record.Text(func(l *lease.Lease) *string { return &l.Holder.Netns.Path }),
	{Value: netnsFile, Set: setNetnsFile},
	record.Text(func(l *lease.Lease) *string { return &l.Holder.BootID }),
	record.Text(func(l *lease.Lease) *string { return &l.MAC }),
	record.Number(func(l *lease.Lease) *lease.Window { return &l.Window }),
	record.Number(func(l *lease.Lease) *time.Duration { return &l.CoolDown }),
	record.Number(func(l *lease.Lease) *int { return &l.HeldLimit }),
	instant(func(l *lease.Lease) *lease.Instant { return &l.BoundAt }),
	record.Flag(func(l *lease.Lease) *bool { return &l.IsHold }),
	instant(func(l *lease.Lease) *lease.Instant { return &l.ReleasedAt }),
	record.Number(func(l *lease.Lease) *lease.Window { return &l.Hold }),
	record.Flag(func(l *lease.Lease) *bool { return &l.Superseded }),
	instant(func(l *lease.Lease) *lease.Instant { return &l.RefusedAt }),
	record.Text(func(l *lease.Lease) *string { return &l.RefusedFor }),
	record.Number(func(l *lease.Lease) *lease.Window { return &l.MaxWindow }),
	record.Text(func(l *lease.Lease) *string { return &l.Owner }),
	record.Text(func(l *lease.Lease) *string { return &l.NamespaceUID }),
	record.Text(func(l *lease.Lease) *string { return &l.ReserveAs }),
	record.Flag(func(l *lease.Lease) *bool { return &l.Leaving }),
}

// instant is both clocks, and the boot id if it differs from the holder's.
func instant(at func(*lease.Lease) *lease.Instant) record.Field[lease.Lease] {
	return record.Field[lease.Lease]{
		Value: func(l *lease.Lease) []byte {
			if at(l).IsZero() {
				return nil
			}
			return appendInstant(nil, *at(l), l.Holder.BootID)
		},
		Set: func(l *lease.Lease, v []byte) (err error) {
			*at(l), err = parseInstant(v)
			return err
		},
	}
}

func netnsFile(l *lease.Lease) []byte {
	n := l.Holder.Netns
	if n.Ino == 0 {
		return nil
	}
	return binary.AppendUvarint(binary.AppendUvarint(nil, n.Dev), n.Ino)
}

func setNetnsFile(l *lease.Lease, v []byte) error {
	dev, n := binary.Uvarint(v)
	if n <= 0 {
		return fmt.Errorf("no device")
	}
	ino, m := binary.Uvarint(v[n:])
	if m != len(v)-n || m <= 0 {
		return fmt.Errorf("no inode")
	}
	l.Holder.Netns.Dev, l.Holder.Netns.Ino = dev, ino
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
			return record.Number(func(s *lease.State) *lease.State { return s }).Set(&state, value)
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
