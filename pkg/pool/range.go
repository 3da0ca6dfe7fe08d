package pool

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
)

// Range is a run of addresses of one subnet, both ends included.
//
// Invariant, kept by NewRange: Subnet is masked, Start and End lie in it, and
// Start is not after End. The Gateway may lie anywhere, also outside the
// subnet or in the other family, as with host-local.
type Range struct {
	Subnet  netip.Prefix
	Start   netip.Addr
	End     netip.Addr
	Gateway netip.Addr
}

// NewRange checks a range as a user wrote it. The zero Addr stands for "not
// given": the start is then the first address after the network's, the end
// the last one (IPv4: the one before it, which is the broadcast address), and
// the gateway the first address after the network's.
//
// An error begins with the field that is wrong, in host-local's spelling:
// subnet, rangeStart, rangeEnd or gateway.
func NewRange(subnet netip.Prefix, start, end, gateway netip.Addr) (Range, error) {
	if err := checkSubnet(subnet); err != nil {
		return Range{}, fmt.Errorf("subnet: %w", err)
	}
	r := Range{
		Subnet:  subnet,
		Start:   given(start, subnet.Addr().Next()),
		End:     given(end, lastOf(subnet)),
		Gateway: given(gateway, subnet.Addr().Next()),
	}
	if r.Gateway.Zone() != "" {
		return Range{}, fmt.Errorf("gateway: %s has a zone, which is not accepted", r.Gateway)
	}
	if !subnet.Contains(r.Start) {
		return Range{}, fmt.Errorf("rangeStart: %s is not in subnet %s", r.Start, subnet)
	}
	if !subnet.Contains(r.End) {
		return Range{}, fmt.Errorf("rangeEnd: %s is not in subnet %s", r.End, subnet)
	}
	if r.End.Less(r.Start) {
		return Range{}, orderError(r, end.IsValid())
	}
	return r, nil
}

// checkSubnet refuses what has no room for a network address, a gateway and a
// pod, and what is not written as a network.
func checkSubnet(subnet netip.Prefix) error {
	addr := subnet.Addr()
	switch {
	case !subnet.IsValid():
		return fmt.Errorf("missing; a network is needed, such as 10.0.0.0/24")
	case addr.Is4In6():
		return fmt.Errorf("%s mixes IPv4 and IPv6; write it as %s", subnet, addr.Unmap())
	case subnet.Bits() > addr.BitLen()-2:
		return fmt.Errorf("%s is too small to allocate from; /%d or larger is needed", subnet, addr.BitLen()-2)
	case subnet.Masked() != subnet:
		return fmt.Errorf("%s has host bits set; the network is %s", subnet, subnet.Masked())
	}
	return nil
}

func orderError(r Range, endGiven bool) error {
	if endGiven {
		return fmt.Errorf("rangeEnd: %s is before rangeStart %s", r.End, r.Start)
	}
	return fmt.Errorf("rangeStart: %s is after %s, where the range ends unless rangeEnd is given", r.Start, r.End)
}

// given is addr in its plain form, or the default where it was not given.
func given(addr, otherwise netip.Addr) netip.Addr {
	if !addr.IsValid() {
		return otherwise
	}
	return addr.Unmap()
}

// lastOf is the last address of a subnet that a pod may have by default.
func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Addr().AsSlice()
	for i := subnet.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	if last.Is4() {
		return last.Prev()
	}
	return last
}

// Contains tells whether the address lies between start and end.
func (r Range) Contains(addr netip.Addr) bool {
	return addr.Zone() == "" && !addr.Less(r.Start) && !r.End.Less(addr)
}

// String is host-local's form: "10.0.0.1-10.0.0.254".
func (r Range) String() string { return r.Start.String() + "-" + r.End.String() }

// size counts the addresses, gateways included, up to math.MaxUint64.
func (r Range) size() uint64 {
	startHi, startLo := halves(r.Start)
	endHi, endLo := halves(r.End)
	lo, borrow := bits.Sub64(endLo, startLo, 0)
	hi, _ := bits.Sub64(endHi, startHi, borrow)
	if hi != 0 || lo == math.MaxUint64 {
		return math.MaxUint64
	}
	return lo + 1
}

func halves(addr netip.Addr) (hi, lo uint64) {
	b := addr.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}
