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

// value is a field of the configuration that is not decoded yet. path is the path of the field in
// error messages, such as "ipam.ranges[1][0].rangeStart".
type value struct {
	path string
	raw  json.RawMessage // nil if the field is missing
}

// absent reports whether the field is missing or null. host-local treats both alike.
func (v value) absent() bool { return v.raw == nil || string(v.raw) == "null" }

// errorf returns an errConfig error about this field.
func (v value) errorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{errConfig, v.path}, args...)...)
}

// decode unmarshals the value. want describes the expected value in an error, for example "a list
// of routes".
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
	field := value{path: v.path + "." + wrong.Field}
	return field.errorf("want %s, not a JSON %s", jsonType(wrong.Type.Kind()), wrong.Value)
}

// jsonType returns the JSON type for a Go kind, with its article. It returns "a string" for other
// kinds.
func jsonType(k reflect.Kind) string {
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

// list returns the elements of a list with their paths. It returns nil if the field is absent. want
// describes the list in an error.
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
		out[i] = value{fmt.Sprintf("%s[%d]", v.path, i), raw}
	}
	return out, nil
}

// text returns a string. It returns "" if the field is absent.
func (v value) text() (string, error) {
	if v.absent() {
		return "", nil
	}
	var s string
	return s, v.decode(&s, "a string")
}

// addr returns an IP address. It returns the zero Addr if the field is absent or "".
func (v value) addr() (netip.Addr, error) {
	s, err := v.text()
	if err != nil || s == "" {
		return netip.Addr{}, err
	}
	ip := net.ParseIP(s)
	if ip == nil {
		return netip.Addr{}, v.errorf("%s is not an IP address; want one such as 10.0.0.1 or fd00::1", policy.Quote(s))
	}
	return fromIP(ip), nil
}

// prefix returns a network, whose address may have host bits. It returns the zero Prefix if the
// field is missing. Unlike in other fields, null and "" are errors, as with host-local.
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
		return netip.Prefix{}, v.errorf("%s is not a network; want one such as 10.0.0.0/24 or fd00::/64",
			policy.Quote(s))
	}
	ones, bits := network.Mask.Size()
	addr, _ := netip.AddrFromSlice(ip)
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones), nil
}

// requested returns an address that was requested with or without a prefix length. It returns an
// error if the field is absent.
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

// parseIP parses an address with or without a prefix length. It ignores the prefix length.
func parseIP(s string) (netip.Addr, error) {
	ip := net.ParseIP(s)
	if strings.Contains(s, "/") {
		ip, _, _ = net.ParseCIDR(s)
	}
	if ip == nil {
		return netip.Addr{}, fmt.Errorf("%s is not an IP address; want one such as 10.0.0.7, 10.0.0.7/24 or fd00::7",
			policy.Quote(s))
	}
	return fromIP(ip), nil
}

// fromIP returns the Addr of an IP. It returns an IPv4-mapped IPv6 address as an IPv4 address.
func fromIP(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
