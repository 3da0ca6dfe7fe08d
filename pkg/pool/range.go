package pool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
)

// Range is an interval of addresses of one subnet, including both ends.
//
// NewRange guarantees that Subnet has no host bits, Start and End are in Subnet, and Start is not
// after End. The Gateway may be outside the subnet or of the other family, as with host-local.
type Range struct {
	Subnet  netip.Prefix
	Start   netip.Addr
	End     netip.Addr
	Gateway netip.Addr
}

// NewRange validates a range as configured. The zero Addr means that a field is not set: start and
// gateway default to the address after the network address, end to the last address of the subnet,
// for IPv4 to the one before the broadcast address.
//
// An error starts with host-local's name of the invalid field: subnet, rangeStart, rangeEnd or
// gateway.
func NewRange(subnet netip.Prefix, start, end, gateway netip.Addr) (Range, error) {
	if err := checkSubnet(subnet); err != nil {
		return Range{}, fmt.Errorf("subnet: %w", err)
	}
	r := Range{
		Subnet:  subnet,
		Start:   orDefault(start, subnet.Addr().Next()),
		End:     orDefault(end, lastOf(subnet)),
		Gateway: orDefault(gateway, subnet.Addr().Next()),
	}
	if r.Gateway.Zone() != "" {
		return Range{}, fmt.Errorf("gateway: %s has a zone; want an address without one", r.Gateway)
	}
	if !subnet.Contains(r.Start) {
		return Range{}, fmt.Errorf("rangeStart: %s is not in subnet %s", r.Start, subnet)
	}
	if !subnet.Contains(r.End) {
		return Range{}, fmt.Errorf("rangeEnd: %s is not in subnet %s", r.End, subnet)
	}
	switch {
	case !r.End.Less(r.Start):
		return r, nil
	case end.IsValid():
		return Range{}, fmt.Errorf("rangeEnd: %s is before rangeStart %s", r.End, r.Start)
	}
	return Range{}, fmt.Errorf("rangeStart: %s is after %s, the default of rangeEnd", r.Start, r.End)
}

// ErrNoSubnet is returned for a range without a subnet.
var ErrNoSubnet = errors.New("missing; want a network such as 10.0.0.0/24")

// checkSubnet rejects subnets that are too small for a network address, a gateway and a pod, and
// those with host bits.
func checkSubnet(subnet netip.Prefix) error {
	addr := subnet.Addr()
	switch {
	case !subnet.IsValid():
		return ErrNoSubnet
	case addr.Is4In6():
		return fmt.Errorf("%s is an IPv4-mapped IPv6 address; write it as %s", subnet, addr.Unmap())
	case subnet.Bits() > addr.BitLen()-2:
		return fmt.Errorf("%s is too small to allocate from; want /%d or larger", subnet, addr.BitLen()-2)
	case subnet.Masked() != subnet:
		return fmt.Errorf("%s has host bits set; want the network %s", subnet, subnet.Masked())
	}
	return nil
}

// orDefault returns addr, unmapped, or the default if addr is the zero Addr.
func orDefault(addr, byDefault netip.Addr) netip.Addr {
	if !addr.IsValid() {
		return byDefault
	}
	return addr.Unmap()
}

// lastOf returns the default of rangeEnd.
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

// contains reports whether the address is in the range.
func (r Range) contains(addr netip.Addr) bool {
	return addr.Zone() == "" && !addr.Less(r.Start) && !r.End.Less(addr)
}

// String returns host-local's notation, as in "10.0.0.1-10.0.0.254".
func (r Range) String() string { return r.Start.String() + "-" + r.End.String() }

// size returns the number of addresses including gateways, at most math.MaxUint64.
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
	return binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
}
