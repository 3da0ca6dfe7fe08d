package cniplugin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// maxNetworkName is the maximum length of a network's name in bytes. It is NAME_MAX, because
// host-local uses the name as the name of a directory.
const maxNetworkName = 255

// config is a network configuration of which only the outer levels are decoded. Each verb decodes
// the values that it needs, and thereby ignores errors in the others.
type config struct {
	Name       string
	CNIVersion string
	Type       string // the plugin; with ipam, the one that delegates IPAM to leasehold

	ipam           value // absent if leasehold is called as a chained plugin
	section        ipamSection
	sectionErr     error // why there is no section
	ipRanges       value
	runtimeIPs     value
	annotations    value
	argsIPs        value
	prevResult     value
	attachments    value
	oldAttachments value
	mac            value
}

// ipamSection contains the fields of the ipam section that host-local has. The fields are not
// decoded yet.
type ipamSection struct {
	// Subnet is the range of addresses in CIDR notation, in place of ranges.
	Subnet json.RawMessage `json:"subnet"`
	// RangeStart is the first address of subnet that is assigned.
	RangeStart json.RawMessage `json:"rangeStart"`
	// RangeEnd is the last address of subnet that is assigned.
	RangeEnd json.RawMessage `json:"rangeEnd"`
	// Gateway is the gateway of subnet, which is not assigned; by default its first address.
	Gateway json.RawMessage `json:"gateway"`
	// Ranges are range sets: an array of arrays of objects with subnet, rangeStart, rangeEnd and
	// gateway. A pod gets an address of each set.
	Ranges json.RawMessage `json:"ranges"`
	// Routes are copied to the result: an array of objects with dst, and optionally gw.
	Routes json.RawMessage `json:"routes"`
	// DataDir is the directory that has a directory of host-local's files for each network; by
	// default /var/lib/cni/networks.
	DataDir json.RawMessage `json:"dataDir"`
	// ResolvConf is the path of a file in the format of resolv.conf. The result has the DNS
	// settings of the file.
	ResolvConf json.RawMessage `json:"resolvConf"`
}

// loadConfig decodes the first level of a configuration, the first level of runtimeConfig, and
// args.cni. If one of the latter two is invalid, it returns an error together with the config.
func loadConfig(stdin []byte) (*config, error) {
	var top struct {
		Name           string          `json:"name"`
		CNIVersion     string          `json:"cniVersion"`
		Type           string          `json:"type"`
		IPAM           json.RawMessage `json:"ipam"`
		RuntimeConfig  json.RawMessage `json:"runtimeConfig"`
		Args           json.RawMessage `json:"args"`
		PrevResult     json.RawMessage `json:"prevResult"`
		Attachments    json.RawMessage `json:"cni.dev/valid-attachments"`
		OldAttachments json.RawMessage `json:"cni.dev/attachments"`
	}
	if err := json.Unmarshal(stdin, &top); err != nil {
		return nil, fmt.Errorf("%w: %w", errJSON, err)
	}
	if len(top.Name) > maxNetworkName {
		return nil, fmt.Errorf("%w: name: %s; want at most %d characters",
			errConfig, policy.Quote(top.Name), maxNetworkName)
	}
	c := &config{
		Name: top.Name, CNIVersion: top.CNIVersion, Type: top.Type,
		ipam:           value{"ipam", top.IPAM},
		prevResult:     value{"prevResult", top.PrevResult},
		attachments:    value{`"cni.dev/valid-attachments"`, top.Attachments},
		oldAttachments: value{`"cni.dev/attachments"`, top.OldAttachments},
	}
	c.section, c.sectionErr = readSection(c.ipam)
	return c, errors.Join(c.loadRuntime(value{"runtimeConfig", top.RuntimeConfig}), c.loadArgs(value{"args", top.Args}))
}

// loadRuntime sets the fields that come from runtimeConfig.
func (c *config) loadRuntime(v value) error {
	var runtime struct {
		IPRanges    json.RawMessage `json:"ipRanges"`
		IPs         json.RawMessage `json:"ips"`
		Annotations json.RawMessage `json:"io.kubernetes.cri.pod-annotations"`
		MAC         json.RawMessage `json:"mac"`
	}
	if v.absent() {
		return nil
	}
	err := v.decode(&runtime, "an object")
	c.ipRanges = value{v.path + ".ipRanges", runtime.IPRanges}
	c.runtimeIPs = value{v.path + ".ips", runtime.IPs}
	c.mac = value{v.path + ".mac", runtime.MAC}
	c.annotations = value{v.path + `["io.kubernetes.cri.pod-annotations"]`, runtime.Annotations}
	return err
}

// loadArgs sets the fields that come from args.cni.
func (c *config) loadArgs(v value) error {
	var args struct {
		CNI json.RawMessage `json:"cni"`
	}
	if v.absent() {
		return nil
	}
	if err := v.decode(&args, "an object"); err != nil {
		return err
	}
	var cni struct {
		IPs json.RawMessage `json:"ips"`
	}
	inner := value{v.path + ".cni", args.CNI}
	if inner.absent() {
		return nil
	}
	err := inner.decode(&cni, "an object")
	c.argsIPs = value{inner.path + ".ips", cni.IPs}
	return err
}

// readSection decodes the first level of the ipam section. It returns an error if the section is
// absent.
func readSection(v value) (s ipamSection, err error) {
	if v.absent() {
		return s, v.errorf(`missing; want an object such as {"type": "leasehold", "subnet": "10.0.0.0/24"}`)
	}
	return s, v.decode(&s, "an object")
}

// pool returns the pool of the configuration. A pool is identified by the name of the network and
// the canonical path of dataDir: two paths that lead to one directory are one pool.
func (c *config) pool() (lease.Pool, error) {
	if c.sectionErr != nil {
		return lease.Pool{}, c.sectionErr
	}
	v := value{"ipam.dataDir", c.section.DataDir}
	dir, err := v.text()
	if err != nil {
		return lease.Pool{}, err
	}
	if dir == "" {
		dir = policy.DefaultDataDir
	}
	if strings.ContainsRune(dir, 0) {
		return lease.Pool{}, v.errorf("%s has a NUL; want a directory such as %s", policy.Quote(dir),
			policy.DefaultDataDir)
	}
	if dir, err = filepath.Abs(dir); err != nil { // relative to the working directory, as with host-local
		return lease.Pool{}, v.errorf("%w; want an absolute path", err)
	}
	return lease.Pool{DataDir: files.Canonical(dir), Network: c.Name}, nil
}

// sets returns the range sets in the order of host-local: the sets of runtimeConfig.ipRanges, the
// set of ipam.subnet, and the sets of ipam.ranges. There may be none. Range sets that overlap are
// an error.
func (c *config) sets() ([]pool.Set, error) {
	if c.sectionErr != nil {
		return nil, c.sectionErr
	}
	fromRuntime, err := readSets(c.ipRanges)
	if err != nil {
		return nil, err
	}
	fromSubnet, err := subnetSet(c.section)
	if err != nil {
		return nil, err
	}
	fromRanges, err := readSets(value{"ipam.ranges", c.section.Ranges})
	if err != nil {
		return nil, err
	}
	sets := slices.Concat(fromRuntime, fromSubnet, fromRanges)
	if err := pool.Disjoint(sets); err != nil {
		return nil, c.ipam.errorf("%w", err)
	}
	return sets, c.checkFamilies(sets)
}

// checkFamilies returns an error if the CNI version is older than 0.3.0 and an IP family has more
// than one range set. The results of those versions have one field for the address of each family.
func (c *config) checkFamilies(sets []pool.Set) error {
	if modern, _ := version.GreaterThanOrEqualTo(c.CNIVersion, "0.3.0"); modern {
		return nil
	}
	families := map[bool]int{}
	for _, set := range sets {
		families[set[0].Start.Is4()]++
	}
	if families[true] > 1 || families[false] > 1 {
		return fmt.Errorf("CNI version %s %w", c.CNIVersion, errFamilies)
	}
	return nil
}

// readSets decodes a list of range sets.
func readSets(v value) ([]pool.Set, error) {
	elements, err := v.list("a list of range sets")
	if err != nil {
		return nil, err
	}
	var sets []pool.Set
	for _, e := range elements {
		set, err := readSet(e)
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// readSet decodes a range set, which is a list of ranges.
func readSet(v value) (pool.Set, error) {
	elements, err := v.list("a list of ranges")
	if err != nil {
		return nil, err
	}
	var ranges []pool.Range
	for _, e := range elements {
		r, err := readRange(e)
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, r)
	}
	set, err := pool.NewSet(ranges...)
	if err != nil {
		return nil, v.errorf("%w", err)
	}
	return set, nil
}

// subnetSet returns a set with one range, which is that of ipam.subnet. If ipam.subnet is missing,
// subnetSet returns nil and ignores rangeStart, rangeEnd and gateway, as host-local does.
func subnetSet(s ipamSection) ([]pool.Set, error) {
	f, err := readFields("ipam", s)
	if err != nil || !f.subnet.IsValid() {
		return nil, err
	}
	r, err := f.newRange("ipam")
	if err != nil {
		return nil, err
	}
	return []pool.Set{{r}}, nil
}

// readRange decodes a range.
func readRange(v value) (pool.Range, error) {
	var s ipamSection // the ipam section has all fields that a range has
	if err := v.decode(&s, "an object with a subnet"); err != nil {
		return pool.Range{}, err
	}
	f, err := readFields(v.path, s)
	if err != nil {
		return pool.Range{}, err
	}
	return f.newRange(v.path)
}

// rangeFields contains the decoded fields of a range. The fields have not been compared with each
// other.
type rangeFields struct {
	subnet              netip.Prefix
	start, end, gateway netip.Addr
}

// readFields decodes the fields of a range. path is the path of the object that contains the
// fields.
func readFields(path string, s ipamSection) (f rangeFields, err error) {
	var errs [4]error
	f.subnet, errs[0] = value{path + ".subnet", s.Subnet}.prefix()
	f.start, errs[1] = value{path + ".rangeStart", s.RangeStart}.addr()
	f.end, errs[2] = value{path + ".rangeEnd", s.RangeEnd}.addr()
	f.gateway, errs[3] = value{path + ".gateway", s.Gateway}.addr()
	return f, cmp.Or(errs[:]...)
}

// newRange returns the range with these fields. path is the path of the object that contains the
// fields, for errors.
func (f rangeFields) newRange(path string) (pool.Range, error) {
	r, err := pool.NewRange(f.subnet, f.start, f.end, f.gateway)
	if err != nil {
		return r, fmt.Errorf("%w: %s.%w", errConfig, path, err)
	}
	return r, nil
}

// options returns the policies in the ipam section (policy.Config).
func (c *config) options() (policy.Config, error) {
	var raw policy.RawConfig
	if err := c.ipam.decode(&raw, "an object"); err != nil {
		return policy.Config{}, err
	}
	options, err := raw.Config()
	if err != nil {
		return options, fmt.Errorf("%w: %w", errConfig, err)
	}
	return options, nil
}

// asked returns the retention that the pod's annotations request. It decodes only the annotations
// policy.Annotation, policy.ReserveAs and policy.ExpectedAddresses: others may have any JSON type.
func (c *config) asked() (policy.Request, error) {
	if c.annotations.raw == nil {
		return policy.RequestFrom(nil, false)
	}
	var raws map[string]json.RawMessage
	if err := c.annotations.decode(&raws, "an object or null"); err != nil {
		return policy.Request{}, err
	}
	texts := map[string]string{}
	for _, name := range []string{policy.Annotation, policy.ReserveAs, policy.ExpectedAddresses} {
		raw, found := raws[name]
		if !found {
			break // none has an effect without the one before it
		}
		var text *string
		if err := json.Unmarshal(raw, &text); err != nil || text == nil {
			return policy.Request{}, fmt.Errorf("%w: annotation %s: want a string, not %s",
				errAnnotation, name, policy.Quote(string(raw)))
		}
		texts[name] = *text
	}
	asked, err := policy.RequestFrom(texts, true)
	if err != nil {
		return asked, fmt.Errorf("%w: %w", errAnnotation, err)
	}
	return asked, nil
}

// requested returns the addresses that are requested by CNI_ARGS (fromArgs), args.cni.ips and
// runtimeConfig.ips, in this order and without duplicates.
func (c *config) requested(fromArgs netip.Addr) ([]netip.Addr, error) {
	var out []netip.Addr
	if fromArgs.IsValid() {
		out = append(out, fromArgs)
	}
	for _, v := range []value{c.argsIPs, c.runtimeIPs} {
		elements, err := v.list("a list of IP addresses")
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			addr, err := e.requested()
			if err != nil {
				return nil, err
			}
			if !slices.Contains(out, addr) {
				out = append(out, addr)
			}
		}
	}
	return out, nil
}

// checkRequested returns an error if the sets cannot serve all requested addresses. A set serves
// one requested address: if two addresses of one set are requested, the error names the second. The
// text of the error is that of host-local.
func checkRequested(requested []netip.Addr, sets []pool.Set) error {
	var unserved []string
	served := map[int]bool{}
	for _, addr := range requested {
		i := slices.IndexFunc(sets, func(s pool.Set) bool { return s.Contains(addr) })
		switch {
		case i < 0 || served[i]:
			unserved = append(unserved, addr.String())
		case !sets[i].Usable(addr):
			return fmt.Errorf("%w: requested ip %s is subnet's gateway; want another address of %s",
				errConfig, addr, sets[i])
		default:
			served[i] = true
		}
	}
	if len(unserved) > 0 {
		return fmt.Errorf("%w: %w: %s", errConfig, ipam.ErrRequest, strings.Join(unserved, " "))
	}
	return nil
}

// validAttachments returns the attachments that GC must not release. listed is false if the
// configuration contains no list. A list that is null counts as an empty list (docs/facts.md, "An
// absent list is not an empty list").
func (c *config) validAttachments() (valid []lease.Attachment, listed bool, err error) {
	v := c.attachments
	if v.raw == nil {
		v = c.oldAttachments
	}
	elements, err := v.list("a list of attachments")
	if err != nil {
		return nil, false, err
	}
	for _, e := range elements {
		var a types.GCAttachment
		if err := e.decode(&a, "an object with containerID and ifname"); err != nil {
			return nil, false, err
		}
		if a.ContainerID == "" || a.IfName == "" {
			return nil, false, e.errorf("want both containerID and ifname, not %s", policy.Quote(string(e.raw)))
		}
		valid = append(valid, lease.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return valid, v.raw != nil, nil
}
