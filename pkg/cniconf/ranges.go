package cniconf

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// defaultSubnetFile is the file in which flannel says which subnets a node has.
const defaultSubnetFile = "/run/flannel/subnet.env"

// addressRange is a range of addresses in an ipam section, as host-local has it.
type addressRange struct {
	Subnet  netip.Prefix `json:"subnet"`
	Start   netip.Addr   `json:"rangeStart"`
	End     netip.Addr   `json:"rangeEnd"`
	Gateway netip.Addr   `json:"gateway"`
}

// setsOf returns the range sets from which an IPAM plugin gives addresses to pods that gets conf on
// standard input, nil if conf does not say it.
func setsOf(conf []byte) (out []pool.Set) {
	var c struct {
		IPAM struct {
			addressRange
			Ranges [][]addressRange
		}
	}
	if json.Unmarshal(conf, &c) != nil {
		return nil
	}
	sets := c.IPAM.Ranges
	if c.IPAM.Subnet.IsValid() { // it is the first, as for host-local
		sets = slices.Insert(sets, 0, []addressRange{c.IPAM.addressRange})
	}
	for _, entries := range sets {
		var ranges []pool.Range
		for _, r := range entries {
			next, err := pool.NewRange(r.Subnet.Masked(), r.Start, r.End, r.Gateway)
			if err != nil {
				return nil
			}
			ranges = append(ranges, next)
		}
		set, err := pool.NewSet(ranges...)
		if err != nil {
			return nil
		}
		out = append(out, set)
	}
	return out
}

// flannelEntry has fields of flannel's entry. flannel decodes its ipam section into a map, whose
// keys are exact, and adds a type that is missing.
type flannelEntry struct {
	SubnetFile string
	Delegate   struct{ Type string } // the plugin that flannel calls
	IPAM       map[string]any
}

// section returns the ipam section that flannel passes on, in which each subnet of the node is a
// range set. It returns nil if flannel has not written the subnets yet.
func (f *flannelEntry) section() any {
	content, err := os.ReadFile(cmp.Or(f.SubnetFile, defaultSubnetFile))
	if err != nil {
		return nil
	}
	var sets [][]any
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if subnet, err := netip.ParsePrefix(value); err == nil && strings.HasSuffix(key, "SUBNET") {
			sets = append(sets, []any{map[string]any{"subnet": subnet.Masked()}}) // as flannel parses it
		}
	}
	if sets == nil {
		return nil
	}
	section := map[string]any{"type": HostLocal}
	maps.Copy(section, f.IPAM)
	section["ranges"] = sets
	return section
}

// sizeOf returns how many addresses pods can get from range sets: those of the smallest one,
// because a pod gets one address of each.
func sizeOf(sets []pool.Set) uint64 {
	if len(sets) == 0 {
		return 0
	}
	return slices.MinFunc(sets, func(a, b pool.Set) int { return cmp.Compare(a.Size(), b.Size()) }).Size()
}
