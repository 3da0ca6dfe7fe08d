package cniconf

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
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

// setsOf returns the range sets from which the entry of a plugin gives addresses to pods, nil if
// the entry does not say that.
func setsOf(raw []byte) (out []pool.Set) {
	var e struct {
		Type       string `json:"type"`
		SubnetFile string `json:"subnetFile"`
		IPAM       struct {
			addressRange
			Ranges [][]addressRange `json:"ranges"`
		} `json:"ipam"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return nil
	}
	sets := e.IPAM.Ranges
	if e.IPAM.Subnet.IsValid() { // it is the first, as for host-local
		sets = append([][]addressRange{{e.IPAM.addressRange}}, sets...)
	}
	if e.Type == typeFlannel { // it replaces the ranges
		sets = nodeSubnets(cmp.Or(e.SubnetFile, defaultSubnetFile))
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

// flannelIPAM returns the ipam section that flannel passes on for its entry, nil if the node's
// subnets are not known yet.
func flannelIPAM(raw []byte) any {
	var e struct {
		SubnetFile string         `json:"subnetFile"`
		IPAM       map[string]any `json:"ipam"`
	}
	_ = json.Unmarshal(raw, &e) // plugin has decoded it
	sets := nodeSubnets(cmp.Or(e.SubnetFile, defaultSubnetFile))
	if sets == nil {
		return nil
	}
	section := map[string]any{"type": HostLocal}
	maps.Copy(section, e.IPAM)
	ranges := [][]map[string]any{}
	for _, set := range sets {
		ranges = append(ranges, []map[string]any{{"subnet": set[0].Subnet.Masked()}}) // as flannel parses it
	}
	section["ranges"] = ranges
	return section
}

// sizeOf returns how many addresses pods can get from range sets: those of the smallest one,
// because a pod gets one address of each.
func sizeOf(sets []pool.Set) (smallest uint64) {
	for _, set := range sets {
		if size := set.Size(); smallest == 0 || size < smallest {
			smallest = size
		}
	}
	return smallest
}

// nodeSubnets returns the subnets in flannel's file, each a set of its own. It returns nil if the
// file does not exist yet.
func nodeSubnets(file string) (sets [][]addressRange) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if subnet, err := netip.ParsePrefix(value); err == nil && strings.HasSuffix(key, "SUBNET") {
			sets = append(sets, []addressRange{{Subnet: subnet}})
		}
	}
	return sets
}
