package store

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// A record is a list of fields, each with a tag, a length and its bytes, followed by the FNV-1a
// hash of them. The hash detects any damage to a single byte. Unlike CRC-32C it needs no tables,
// which would add 0.25 ms to the start of a process that runs for 4 ms. Missing fields are zero.
// Fields with an unknown tag are kept and written back, so that an older version does not lose what
// a newer one has added.
const (
	tagAddress = 1 + iota
	tagID
	tagSet
	tagState
	tagNamespace
	tagName
	tagUID
	tagContainer
	tagIfName
	tagNetns
	tagNetnsFile
	tagBootID
	tagMAC
	tagWindow
	tagSoft
	tagHeldLimit
	tagBoundAt
	tagFirm
	tagReleasedAt
	tagHold
	tagSuperseded
	tagRefusedAt
	tagRefusedFor
	tagMaxWindow
	tagOwner
	tagNamespaceUID
	tagReservation
	tagLeaving
	tagEnd
)

const sumBytes = 8

func checksum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

type encoder struct{ b []byte }

func (e *encoder) bytes(tag uint64, v []byte) {
	if len(v) > 0 {
		e.b = binary.AppendUvarint(e.b, tag)
		e.b = binary.AppendUvarint(e.b, uint64(len(v)))
		e.b = append(e.b, v...)
	}
}

func (e *encoder) text(tag uint64, v string) { e.bytes(tag, []byte(v)) }

func (e *encoder) number(tag uint64, v int64) {
	if v != 0 {
		e.bytes(tag, binary.AppendVarint(nil, v))
	}
}

func (e *encoder) flag(tag uint64, v bool) {
	if v {
		e.number(tag, 1)
	}
}

// instant writes both clocks, and the boot id if it differs from the holder's.
func (e *encoder) instant(tag uint64, v lease.Instant, boot string) {
	if !v.IsZero() {
		e.bytes(tag, appendInstant(nil, v, boot))
	}
}

func appendInstant(b []byte, v lease.Instant, boot string) []byte {
	b = binary.AppendVarint(b, v.Wall.UnixNano())
	b = binary.AppendVarint(b, int64(v.Boot))
	if v.BootID != boot {
		b = append(append(b, 0), v.BootID...)
	}
	return b
}

// seal appends the checksum.
func (e *encoder) seal() []byte {
	return binary.BigEndian.AppendUint64(e.b, checksum(e.b))
}

func encode(l lease.Lease) []byte {
	e := encoder{b: make([]byte, 0, 384)}
	e.bytes(tagAddress, l.Address.AsSlice())
	e.text(tagID, l.ID)
	e.text(tagSet, l.Set)
	e.number(tagState, int64(l.State))
	e.text(tagNamespace, l.Namespace)
	e.text(tagName, l.Name)
	e.text(tagUID, l.UID)
	e.text(tagContainer, l.Holder.ContainerID)
	e.text(tagIfName, l.Holder.IfName)
	e.text(tagNetns, l.Holder.Netns.Path)
	if n := l.Holder.Netns; n.Ino != 0 {
		e.bytes(tagNetnsFile, binary.AppendUvarint(binary.AppendUvarint(nil, n.Dev), n.Ino))
	}
	e.text(tagBootID, l.Holder.BootID)
	e.text(tagMAC, l.MAC)
	e.number(tagWindow, int64(l.Window))
	e.number(tagSoft, int64(l.Soft))
	e.number(tagHeldLimit, int64(l.HeldLimit))
	e.instant(tagBoundAt, l.BoundAt, l.Holder.BootID)
	e.flag(tagFirm, l.Firm)
	e.instant(tagReleasedAt, l.ReleasedAt, l.Holder.BootID)
	e.number(tagHold, int64(l.Hold))
	e.flag(tagSuperseded, l.Superseded)
	e.instant(tagRefusedAt, l.RefusedAt, l.Holder.BootID)
	e.text(tagRefusedFor, l.RefusedFor)
	e.number(tagMaxWindow, int64(l.MaxWindow))
	e.text(tagOwner, l.Owner)
	e.text(tagNamespaceUID, l.NamespaceUID)
	e.text(tagReservation, l.Reservation)
	e.flag(tagLeaving, l.Leaving)
	e.b = append(e.b, l.Extra...)
	return e.seal()
}

// fields verifies the checksum of a record, and calls visit for each field with its tag, the whole
// field (raw) and its value (v). It returns the first error of visit, and ErrDamaged if the record
// is not valid.
func fields(b []byte, visit func(tag uint64, raw, v []byte) error) error {
	if len(b) < sumBytes {
		return fmt.Errorf("%w: only %d bytes", ErrDamaged, len(b))
	}
	body, sum := b[:len(b)-sumBytes], binary.BigEndian.Uint64(b[len(b)-sumBytes:])
	if checksum(body) != sum {
		return fmt.Errorf("%w: checksum", ErrDamaged)
	}
	for len(body) > 0 {
		tag, n := binary.Uvarint(body)
		if n <= 0 {
			return fmt.Errorf("%w: tag", ErrDamaged)
		}
		size, m := binary.Uvarint(body[n:])
		if m <= 0 || size == 0 || size > uint64(len(body)-n-m) {
			return fmt.Errorf("%w: length of field %d", ErrDamaged, tag)
		}
		end := n + m + int(size)
		if err := visit(tag, body[:end], body[n+m:end]); err != nil {
			return fmt.Errorf("%w: field %d: %w", ErrDamaged, tag, err)
		}
		body = body[end:]
	}
	return nil
}

// decode decodes a record of a pool. The pool is part of the key, not of the record.
func decode(b []byte, p lease.Pool) (lease.Lease, error) {
	l := lease.Lease{Pool: p}
	last := uint64(0)
	err := fields(b, func(tag uint64, raw, v []byte) error {
		if tag >= tagEnd {
			l.Extra = append(l.Extra, raw...)
			return nil
		}
		if tag <= last {
			return fmt.Errorf("after field %d", last)
		}
		last = tag
		return decodeField(&l, tag, v)
	})
	if err != nil {
		return lease.Lease{}, err
	}
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

// decodeField decodes v into the field of the lease that belongs to the tag. There is one case for
// each tag. The caller handles unknown tags.
func decodeField(l *lease.Lease, tag uint64, v []byte) (err error) {
	var n int64
	switch tag {
	case tagAddress:
		addr, ok := netip.AddrFromSlice(v)
		if !ok {
			return fmt.Errorf("invalid address of %d bytes", len(v))
		}
		l.Address = addr
	case tagID:
		l.ID = string(v)
	case tagSet:
		l.Set = string(v)
	case tagState:
		n, err = number(v)
		l.State = lease.State(n)
	case tagNamespace:
		l.Namespace = string(v)
	case tagName:
		l.Name = string(v)
	case tagUID:
		l.UID = string(v)
	case tagContainer:
		l.Holder.ContainerID = string(v)
	case tagIfName:
		l.Holder.IfName = string(v)
	case tagNetns:
		l.Holder.Netns.Path = string(v)
	case tagNetnsFile:
		l.Holder.Netns.Dev, l.Holder.Netns.Ino, err = netnsFile(v)
	case tagBootID:
		l.Holder.BootID = string(v)
	case tagMAC:
		l.MAC = string(v)
	case tagWindow:
		l.Window, err = window(v)
	case tagSoft:
		l.Soft, err = duration(v)
	case tagHeldLimit:
		n, err = number(v)
		l.HeldLimit = int(n)
	case tagBoundAt:
		l.BoundAt, err = instant(v)
	case tagFirm:
		l.Firm, err = flag(v)
	case tagReleasedAt:
		l.ReleasedAt, err = instant(v)
	case tagHold:
		l.Hold, err = window(v)
	case tagSuperseded:
		l.Superseded, err = flag(v)
	case tagRefusedAt:
		l.RefusedAt, err = instant(v)
	case tagRefusedFor:
		l.RefusedFor = string(v)
	case tagMaxWindow:
		l.MaxWindow, err = window(v)
	case tagOwner:
		l.Owner = string(v)
	case tagNamespaceUID:
		l.NamespaceUID = string(v)
	case tagReservation:
		l.Reservation = string(v)
	case tagLeaving:
		l.Leaving, err = flag(v)
	}
	return err
}

func number(v []byte) (int64, error) {
	x, n := binary.Varint(v)
	if n <= 0 || n != len(v) {
		return 0, fmt.Errorf("invalid number")
	}
	return x, nil
}

func flag(v []byte) (bool, error) {
	x, err := number(v)
	return x != 0, err
}

func duration(v []byte) (time.Duration, error) {
	x, err := number(v)
	return time.Duration(x), err
}

func window(v []byte) (lease.Window, error) {
	x, err := number(v)
	return lease.Window(x), err
}

func netnsFile(v []byte) (dev, ino uint64, err error) {
	dev, n := binary.Uvarint(v)
	if n <= 0 {
		return 0, 0, fmt.Errorf("no device")
	}
	ino, m := binary.Uvarint(v[n:])
	if m != len(v)-n || m <= 0 {
		return 0, 0, fmt.Errorf("no inode")
	}
	return dev, ino, nil
}

// sameBoot stands for the holder's boot id until the record is decoded.
const sameBoot = "\x00"

func instant(v []byte) (lease.Instant, error) {
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

const poolBytes = 5 // 4 for the number of the pool, 1 for whether it was adopted

// encodePool encodes an entry of the list of pools. The checksum includes the key, because with
// another name or number the pool would appear to have no leases.
func encodePool(p lease.Pool, id poolID, adopted bool) []byte {
	v := append(id.prefix(), 0)
	if adopted {
		v[poolBytes-1] = 1
	}
	return binary.BigEndian.AppendUint64(v, checksum(append(poolKey(p), v...)))
}

// decodePool is the inverse of encodePool.
func decodePool(p lease.Pool, v []byte) (id poolID, adopted bool, err error) {
	if len(v) != poolBytes+sumBytes {
		return 0, false, fmt.Errorf("%w: %d bytes", ErrDamaged, len(v))
	}
	v, sum := v[:poolBytes], binary.BigEndian.Uint64(v[poolBytes:])
	if checksum(append(poolKey(p), v...)) != sum {
		return 0, false, fmt.Errorf("%w: checksum", ErrDamaged)
	}
	return poolID(binary.BigEndian.Uint32(v)), v[poolBytes-1] != 0, nil
}
