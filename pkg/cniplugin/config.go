package cniplugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// maxNetworkName is the maximum length of a network's name in bytes. It is NAME_MAX, because
// host-local uses the name as the name of a directory.
const maxNetworkName = 255

// config is a network configuration. Fields that not every verb needs are not decoded yet, so that
// a verb ignores errors in the others. What host-local decodes has the type that it has there, so
// that both accept the same configurations, and read the same from a key that is there twice.
type config struct {
	Name       string   `json:"name"`
	CNIVersion string   `json:"cniVersion"`
	IPAM       *section `json:"ipam"` // absent if leasehold is called as a chained plugin

	RuntimeConfig struct {
		IPRanges    [][]ipamRange   `json:"ipRanges"`
		IPs         []string        `json:"ips"`
		MAC         json.RawMessage `json:"mac"`
		Annotations json.RawMessage `json:"io.kubernetes.cri.pod-annotations"`
	} `json:"runtimeConfig"`
	Args *struct {
		CNI *struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
	PrevResult  json.RawMessage `json:"prevResult"`
	Attachments json.RawMessage `json:"cni.dev/valid-attachments"`

	stdin []byte
	noPod error // why CNI_ARGS name no pod; set by request
}

// section is the ipam section without the policies of leasehold.
type section struct {
	ipamRange
	ipamSection
	Type, Name string // unused, but host-local decodes them
}

// entry has fields of the whole entry in a plugin list, which host-local does not read. A field of
// another type is left out.
type entry struct {
	Type                                string // the plugin; with ipam, the one that delegates IPAM to leasehold
	Master, Bridge                      string // of that plugin, see link
	IsGateway, IsDefaultGateway, IPMasq bool
	Capabilities                        map[string]bool
}

// ipamRange contains the fields of a range of addresses, which the ipam section may have itself.
// The subnet must be a string, the others may be null.
type ipamRange struct {
	// Subnet is the range of addresses in CIDR notation, in place of ranges.
	Subnet json.RawMessage `json:"subnet"`
	// RangeStart is the first address of subnet that is assigned.
	RangeStart string `json:"rangeStart"`
	// RangeEnd is the last address of subnet that is assigned.
	RangeEnd string `json:"rangeEnd"`
	// Gateway is the gateway of subnet, which is not assigned; by default its first address.
	Gateway string `json:"gateway"`
}

// ipamSection contains the other fields of the ipam section that host-local has.
type ipamSection struct {
	// Ranges are range sets: an array of arrays of objects with subnet, rangeStart, rangeEnd and
	// gateway. A pod gets an address of each set.
	Ranges [][]ipamRange `json:"ranges"`
	// Routes are copied to the result: an array of objects with dst, and optionally gw.
	Routes json.RawMessage `json:"routes"`
	// DataDir is the directory that has a directory of host-local's files for each network; by
	// default /var/lib/cni/networks.
	DataDir string `json:"dataDir"`
	// ResolvConf is the path of a file in the format of resolv.conf. The result has the DNS
	// settings of the file.
	ResolvConf string `json:"resolvConf"`
}

// loadConfig decodes a configuration. With an error it returns an empty one.
func loadConfig(stdin []byte) (*config, error) {
	c := &config{stdin: stdin}
	if err := decode(stdin, c, ""); err != nil {
		return &config{}, err
	}
	if len(c.Name) > maxNetworkName {
		return &config{}, fmt.Errorf("%w: name: %s; want at most %d characters",
			errConfig, policy.Quote(c.Name), maxNetworkName)
	}
	return c, nil
}

// ipam returns the ipam section, which is empty if there is none.
func (c *config) ipam() section {
	if c.IPAM == nil {
		return section{}
	}
	return *c.IPAM
}

func (c *config) entry() (e entry) {
	_ = json.Unmarshal(c.stdin, &e)
	return e
}

// decode unmarshals a part of the configuration, which path names; "" is the whole.
func decode(raw []byte, into any, path string) error {
	err := json.Unmarshal(raw, into)
	if err == nil {
		return nil
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at, _ := pathAt(json.NewDecoder(bytes.NewReader(raw)), wrong.Offset, path)
		if at = strings.TrimPrefix(at, "."); at != "" {
			return invalid(at, "want %s, not a JSON %s", jsonType(wrong.Type.Kind()), wrong.Value)
		}
	}
	return fmt.Errorf("%w: %w", errJSON, err)
}

// pathAt returns the path, such as "ipam.ranges[0]", of the value in which the offset is. path is
// that of the next value of d. It reports false if the offset is behind that value.
func pathAt(d *json.Decoder, offset int64, path string) (at string, found bool) {
	token, err := d.Token()
	if err != nil || d.InputOffset() >= offset {
		return path, true
	}
	if token != json.Delim('[') && token != json.Delim('{') {
		return "", false
	}
	for i := 0; d.More(); i++ {
		next := fmt.Sprintf("%s[%d]", path, i)
		if token == json.Delim('{') {
			key, _ := d.Token()
			next = fmt.Sprintf("%s.%s", path, key)
		}
		if at, found := pathAt(d, offset, next); found {
			return at, true
		}
	}
	_, _ = d.Token()
	return "", false
}

// invalid returns an errConfig error about a field, such as "ipam.ranges[1][0].rangeStart".
func invalid(path, format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{errConfig, path}, args...)...)
}

// isAbsent reports whether a field is missing or null. host-local treats both alike.
func isAbsent(raw json.RawMessage) bool { return raw == nil || string(raw) == "null" }

// jsonType returns the JSON type for a Go kind, with its article.
func jsonType(k reflect.Kind) string {
	switch k {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.Float64:
		return "a number"
	}
	return "a string"
}

// pool returns the pool of the configuration. A pool is identified by the name of the network and
// the canonical path of dataDir: two paths that lead to one directory are one pool.
func (c *config) pool() (lease.Pool, error) {
	if c.IPAM == nil {
		return lease.Pool{}, invalid("ipam",
			`missing; want an object such as {"type": "leasehold", "subnet": "10.0.0.0/24"}`)
	}
	dir := cmp.Or(c.IPAM.DataDir, policy.DefaultDataDir)
	if strings.ContainsRune(dir, 0) {
		return lease.Pool{}, invalid("ipam.dataDir", "%s has a NUL; want a directory such as %s", policy.Quote(dir),
			policy.DefaultDataDir)
	}
	dir, err := filepath.Abs(dir) // relative to the working directory, as with host-local
	if err != nil {
		return lease.Pool{}, invalid("ipam.dataDir", "%w; want an absolute path", err)
	}
	return lease.Pool{DataDir: files.Canonical(dir), Network: c.Name}, nil
}

// sets returns the range sets in the order of host-local: the sets of runtimeConfig.ipRanges, the
// set of ipam.subnet, and the sets of ipam.ranges. There may be none. Range sets that overlap are
// an error. If ipam.subnet is missing, rangeStart, rangeEnd and gateway have no effect, as for
// host-local, but must be addresses.
func (c *config) sets() (sets []pool.Set, err error) {
	var paths []string // where each set is configured
	add := func(path string, list [][]ipamRange) error {
		for i, ranges := range list {
			at := fmt.Sprintf("%s[%d]", path, i)
			set, err := readSet(at, ranges)
			if err != nil {
				return err
			}
			sets, paths = append(sets, set), append(paths, at)
		}
		return nil
	}
	if err := add("runtimeConfig.ipRanges", c.RuntimeConfig.IPRanges); err != nil {
		return nil, err
	}
	s := c.ipam()
	r, err := readRange("ipam", s.ipamRange)
	switch {
	case err == nil:
		sets, paths = append(sets, pool.Set{r}), append(paths, "ipam.subnet")
	case !errors.Is(err, pool.ErrNoSubnet):
		return nil, err
	}
	if err := add("ipam.ranges", s.Ranges); err != nil {
		return nil, err
	}
	if err := pool.Disjoint(sets, paths); err != nil {
		return nil, fmt.Errorf("%w: %w; an interface gets an address of each, so remove one", errConfig, err)
	}
	return sets, c.checkFamilies(sets)
}

// checkFamilies returns an error if the CNI version is older than 0.3.0 and an IP family has more
// than one range set. The results of those versions have one field for the address of each family.
func (c *config) checkFamilies(sets []pool.Set) error {
	if modern, _ := version.GreaterThanOrEqualTo(c.CNIVersion, "0.3.0"); modern {
		return nil
	}
	v4 := 0
	for _, set := range sets {
		if set[0].Start.Is4() {
			v4++
		}
	}
	if v4 > 1 || len(sets)-v4 > 1 {
		return fmt.Errorf("CNI version %s %w", c.CNIVersion, errFamilies)
	}
	return nil
}

// readSet returns a range set. path is the path of the list of its ranges.
func readSet(path string, ranges []ipamRange) (pool.Set, error) {
	var all []pool.Range
	for i, r := range ranges {
		next, err := readRange(fmt.Sprintf("%s[%d]", path, i), r)
		if err != nil {
			return nil, err
		}
		all = append(all, next)
	}
	set, err := pool.NewSet(all...)
	if err != nil {
		return nil, invalid(path, "%w", err)
	}
	return set, nil
}

// readRange returns a range. path is the path of the object that contains its fields.
func readRange(path string, r ipamRange) (pool.Range, error) {
	subnet, errSubnet := readPrefix(path+".subnet", r.Subnet)
	start, errStart := readAddr(path+".rangeStart", r.RangeStart)
	end, errEnd := readAddr(path+".rangeEnd", r.RangeEnd)
	gateway, errGateway := readAddr(path+".gateway", r.Gateway)
	if err := cmp.Or(errSubnet, errStart, errEnd, errGateway); err != nil {
		return pool.Range{}, err
	}
	out, err := pool.NewRange(subnet, start, end, gateway)
	if err != nil {
		return out, fmt.Errorf("%w: %s.%w", errConfig, path, err)
	}
	return out, nil
}

// readAddr returns an IP address, the zero Addr for "".
func readAddr(path, s string) (netip.Addr, error) {
	addr := fromIP(net.ParseIP(s))
	if s != "" && !addr.IsValid() {
		return addr, invalid(path, "%s is not an IP address; want one such as 10.0.0.1 or fd00::1", policy.Quote(s))
	}
	return addr, nil
}

// readPrefix returns a network, whose address may have host bits, the zero Prefix if there is none.
func readPrefix(path string, raw json.RawMessage) (netip.Prefix, error) {
	if raw == nil {
		return netip.Prefix{}, nil
	}
	var s string
	err := decode(raw, &s, path)
	if err != nil {
		return netip.Prefix{}, err
	}
	ip, network, err := net.ParseCIDR(s)
	if err != nil {
		return netip.Prefix{}, invalid(path, "%s is not a network; want one such as 10.0.0.0/24 or fd00::/64",
			policy.Quote(s))
	}
	ones, bits := network.Mask.Size()
	addr, _ := netip.AddrFromSlice(ip)
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones), nil
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

// options returns the policies in the ipam section (policy.Config). Only options decodes them: a
// DEL needs the pool and the range sets also if a policy has another type.
func (c *config) options() (policy.Config, error) {
	raw := struct{ IPAM *policy.RawConfig }{}
	if err := decode(c.stdin, &raw, ""); err != nil || raw.IPAM == nil {
		return policy.Defaults(), err
	}
	options, err := raw.IPAM.Config()
	if err != nil {
		err = fmt.Errorf("%w: %w", errConfig, err)
	}
	return options, err
}

// requested returns the addresses that are requested by CNI_ARGS (fromArgs), args.cni.ips and
// runtimeConfig.ips, in this order and without duplicates.
func (c *config) requested(fromArgs netip.Addr) (out []netip.Addr, err error) {
	if fromArgs.IsValid() {
		out = append(out, fromArgs)
	}
	add := func(path string, list []string) error {
		for i, s := range list {
			addr, err := parseIP(s)
			if err != nil {
				return invalid(fmt.Sprintf("%s[%d]", path, i), "%w", err)
			}
			if !slices.Contains(out, addr) {
				out = append(out, addr)
			}
		}
		return nil
	}
	if a := c.Args; a != nil && a.CNI != nil {
		err = add("args.cni.ips", a.CNI.IPs)
	}
	return out, cmp.Or(err, add("runtimeConfig.ips", c.RuntimeConfig.IPs))
}

// validAttachments returns the attachments that GC must not release. listed is false if the
// configuration contains no list. A list that is null counts as an empty list (docs/facts.md, "An
// absent list is not an empty list").
func (c *config) validAttachments() (valid []lease.Attachment, listed bool, err error) {
	const path = `"cni.dev/valid-attachments"`
	if c.Attachments == nil {
		return nil, false, nil
	}
	var list []types.GCAttachment
	if err := decode(c.Attachments, &list, path); err != nil {
		return nil, false, err
	}
	for i, a := range list {
		if a.ContainerID == "" || a.IfName == "" {
			return nil, false, invalid(fmt.Sprintf("%s[%d]", path, i), "want both containerID and ifname")
		}
		valid = append(valid, lease.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return valid, true, nil
}
