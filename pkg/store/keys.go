package store

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// poolID is the number of a pool in this store. Numbers are never reused. 0 is that of all pools
// that have none: it has no leases.
type poolID uint32

func (p poolID) prefix() []byte { return binary.BigEndian.AppendUint32(nil, uint32(p)) }

func poolKey(p lease.Pool) []byte { return []byte(p.DataDir + "\x00" + p.Network) }

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		b = append(b, 4)
	} else {
		b = append(b, 6)
	}
	return append(b, a.AsSlice()...)
}

func addrOf(b []byte) (netip.Addr, bool) {
	if len(b) == 0 || (b[0] == 4) != (len(b) == 5) || (b[0] == 6) != (len(b) == 17) {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(b[1:])
}

func leaseKey(p poolID, a netip.Addr) []byte { return appendAddr(p.prefix(), a) }

// splitLease is the inverse of leaseKey.
func splitLease(k []byte) (poolID, netip.Addr, bool) {
	a, ok := addrOf(k[min(len(k), 4):])
	if !ok {
		return 0, netip.Addr{}, false
	}
	return poolID(binary.BigEndian.Uint32(k)), a, true
}

func holderPrefix(containerID, ifName string) []byte {
	return []byte(containerID + "\x00" + ifName + "\x00")
}

func podPrefix(p poolID, k lease.Key) []byte {
	name := k.Name
	if k.ReserveAs != "" {
		name = reservationMark + k.ReserveAs
	}
	return append(p.prefix(), k.Namespace+"\x00"+name+"\x00"+k.IfName+"\x00"...)
}

func expiryKey(p poolID, end time.Time, a netip.Addr) []byte {
	b := binary.BigEndian.AppendUint64(p.prefix(), uint64(end.UnixNano())^(1<<63))
	return appendAddr(b, a)
}

// end returns the end of a hold by the wall clock of its release, which orders the bucket expiry.
// Whether a hold has ended is decided by lease.Remaining. ok is false if the hold has no end.
func end(l lease.Lease) (t time.Time, ok bool) {
	if l.State != lease.Held || l.Hold > lease.Window(100*365*24*time.Hour) {
		return time.Time{}, false
	}
	return l.ReleasedAt.Wall.Add(time.Duration(l.Hold)), true
}

// chunkBytes is the size of a bitmap of 256 addresses in the bucket taken. With it the next free
// address is found without reading the leases.
const chunkBytes = 32

// chunkOf returns the first address of the bitmap that an address belongs to, and its bit there.
func chunkOf(a netip.Addr) (base netip.Addr, bit int) {
	b := a.AsSlice()
	bit = int(b[len(b)-1])
	b[len(b)-1] = 0
	base, _ = netip.AddrFromSlice(b)
	return base, bit
}

// inChunk is the inverse of chunkOf.
func inChunk(base netip.Addr, bit int) netip.Addr {
	b := base.AsSlice()
	b[len(b)-1] = byte(bit)
	a, _ := netip.AddrFromSlice(b)
	return a
}
