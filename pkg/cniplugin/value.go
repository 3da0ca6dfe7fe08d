package cniplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// value is a piece of the configuration and the place where it stands, as in
// "ipam.ranges[1][0].rangeStart".
type value struct {
	place string
	raw   json.RawMessage // nil where nothing stands
}

// absent: null stands for nothing, as for host-local.
func (v value) absent() bool { return v.raw == nil || string(v.raw) == "null" }

// errorf is an error about this place.
func (v value) errorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{errConfig, v.place}, args...)...)
}

// decode reads the value into a Go type. want is what to call that.
func (v value) decode(into any, want string) error {
	err := json.Unmarshal(v.raw, into)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &wrong):
		return v.errorf("%w; want %s", err, want)
	case wrong.Field == "":
		return v.errorf("want %s, not %s", want, policy.Quote(string(v.raw)))
	}
	field := value{place: v.place + "." + wrong.Field}
	return field.errorf("want %s, not a JSON %s", nameOf(wrong.Type.Kind()), wrong.Value)
}

// nameOf is what a field of that kind is called in JSON.
func nameOf(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Int, reflect.Float64:
		return "a number"
	}
	return "a string"
}

// list is the value's elements, each with its place.
func (v value) list(want string) ([]value, error) {
	if v.absent() {
		return nil, nil
	}
	var raws []json.RawMessage
	if err := v.decode(&raws, want); err != nil {
		return nil, err
	}
	out := make([]value, len(raws))
	for i, raw := range raws {
		out[i] = value{fmt.Sprintf("%s[%d]", v.place, i), raw}
	}
	return out, nil
}

// text is a string; "" where nothing stands.
func (v value) text() (string, error) {
	if v.absent() {
		return "", nil
	}
	var s string
	return s, v.decode(&s, "a string")
}

// addr is an address; the zero Addr where nothing stands, or "".
func (v value) addr() (netip.Addr, error) {
	s, err := v.text()
	if err != nil || s == "" {
		return netip.Addr{}, err
	}
	ip := net.ParseIP(s)
	if ip == nil {
		return netip.Addr{}, v.errorf("%s is no IP address; want one such as 10.0.0.1 or fd00::1", policy.Quote(s))
	}
	return fromIP(ip), nil
}

// prefix is a network; the zero Prefix where nothing stands. Unlike elsewhere
// null and "" are errors, as for host-local.
func (v value) prefix() (netip.Prefix, error) {
	if v.raw == nil {
		return netip.Prefix{}, nil
	}
	s, err := v.text()
	if err != nil {
		return netip.Prefix{}, err
	}
	ip, network, err := net.ParseCIDR(s)
	if err != nil {
		return netip.Prefix{}, v.errorf("%s is no network; want one such as 10.0.0.0/24 or fd00::/64", policy.Quote(s))
	}
	ones, bits := network.Mask.Size()
	addr, _ := netip.AddrFromSlice(ip)
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones), nil
}

// requested is an address that a caller asks for, with or without a length.
func (v value) requested() (netip.Addr, error) {
	s, err := v.text()
	if err != nil {
		return netip.Addr{}, err
	}
	addr, err := parseIP(s)
	if err != nil {
		return netip.Addr{}, v.errorf("%w", err)
	}
	return addr, nil
}

// parseIP reads an address "10.0.0.7" or "10.0.0.7/24", whose length counts for
// nothing.
func parseIP(s string) (netip.Addr, error) {
	ip := net.ParseIP(s)
	if strings.Contains(s, "/") {
		ip, _, _ = net.ParseCIDR(s)
	}
	if ip == nil {
		return netip.Addr{}, fmt.Errorf("%s is no IP address; want one such as 10.0.0.7, 10.0.0.7/24 or fd00::7", policy.Quote(s))
	}
	return fromIP(ip), nil
}

func fromIP(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
