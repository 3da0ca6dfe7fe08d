package cniplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// chainedType is the type of leasehold's entry as a chained plugin. That entry follows the entry of
// the plugin that creates the interface.
const chainedType = "leasehold"

// isChained reports whether leasehold is called as a chained plugin, by an entry {"type":
// "leasehold"} without ipam in a plugin list. Otherwise another plugin delegates IPAM to leasehold.
// The chained plugin restores the MAC address of an interface whose pod got its former address
// again (docs/decisions.md, "Announce a returned address").
func (c *config) isChained() bool {
	return c.IPAM == nil && c.entry().Type == chainedType
}

// settableMAC contains the kinds of interface whose MAC address may be set for one pod. It does not
// contain ipvlan, because all ipvlan interfaces have the MAC address of their master, nor physical
// devices, because their MAC address must not be changed.
var settableMAC = map[string]bool{"veth": true, "macvlan": true, "macvtap": true}

// addChained sets the MAC address that the pod's interface had before, so that the ARP and
// neighbour entries of other hosts stay valid. It prints prevResult with that MAC address. If the
// MAC address cannot be set, ADD succeeds with the new MAC address, and a note on stderr contains
// the reason.
func (p *Plugin) addChained(ctx context.Context, c *config, args *skel.CmdArgs) error {
	result, err := c.previous()
	if err != nil {
		return err
	}
	if result == nil {
		return invalid("prevResult", `missing; put an entry {"type": %q} without ipam after the plugin that creates `+
			`the interface`,
			chainedType)
	}
	if err := p.checkNetns(args); err != nil {
		return err
	}
	mac, err := p.keepMAC(ctx, c, args, result)
	if err != nil {
		p.note(fmt.Sprintf("keeping the MAC address of container %s failed: %v", args.ContainerID, err))
	}
	if mac != nil {
		for _, i := range result.Interfaces {
			if i.Name == args.IfName && i.Sandbox != "" {
				i.Mac = mac.String()
			}
		}
	}
	return printAs(p.Stdout, c.CNIVersion, result)
}

// keepMAC sets the MAC address of the interface to the one in the interface's lease, and returns
// it. It returns nil if it did not change the interface: the MAC address of this kind of interface
// must not be set, the lease has no other MAC address, or an error occurred. If the runtime or
// CNI_ARGS requests a MAC address, keepMAC only records the interface's present MAC address in the
// lease.
func (p *Plugin) keepMAC(ctx context.Context, c *config, args *skel.CmdArgs, result *current.Result) (net.HardwareAddr,
	error) {
	link, err := p.Links.Link(args.Netns, args.IfName)
	if err != nil {
		return nil, err
	}
	if !settableMAC[link.Kind] || !ipam.IsUsable(link.MAC) {
		return nil, nil
	}
	who := lease.Attachment{ContainerID: args.ContainerID, IfName: args.IfName}
	addrs := addressesOf(result, args.IfName)
	fixed := c.isMACRequested(args.Args)
	mac, ok, err := p.Service.KeepMAC(ctx, who, addrs, link.MAC, fixed)
	if err != nil || !ok || mac.String() == link.MAC.String() {
		return nil, err
	}
	if err := p.Links.SetMAC(args.Netns, args.IfName, mac); err != nil {
		_, _, recordErr := p.Service.KeepMAC(ctx, who, addrs, link.MAC, true) // true: record link.MAC
		return nil, errors.Join(err, recordErr)
	}
	return mac, nil
}

// addressesOf returns the addresses in the result that belong to the interface ifName or to no
// interface.
func addressesOf(result *current.Result, ifName string) []netip.Addr {
	var out []netip.Addr
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) &&
			result.Interfaces[*i].Name != ifName {
			continue
		}
		out = append(out, fromIP(ip.Address.IP))
	}
	return out
}

// isMACRequested reports whether CNI_ARGS or runtimeConfig.mac requests a MAC address. A
// runtimeConfig.mac that is not a string counts as a request.
func (c *config) isMACRequested(args string) bool {
	for pair := range strings.SplitSeq(args, ";") {
		if key, value, _ := strings.Cut(pair, "="); key == "MAC" && value != "" {
			return true
		}
	}
	mac := c.RuntimeConfig.MAC
	return !isAbsent(mac) && string(mac) != `""`
}
