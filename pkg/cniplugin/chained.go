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
)

// chainedType is the `type` of our entry behind the one that makes the
// interface.
const chainedType = "leasehold"

// isChained tells whether the configuration is an entry of our own in a network's
// list, {"type": "leasehold"}, and not that of a plugin that has us as its IPAM
// plugin. It keeps a pod's hardware address (NAMES, "As a chained plugin").
func (c *config) isChained() bool { return c.ipam.absent() && c.Type == chainedType }

// ownMAC are the kinds of interface whose hardware address is the pod's own. All
// of an ipvlan share their master's, and hardware has one for good.
var ownMAC = map[string]bool{"veth": true, "macvlan": true, "macvtap": true}

// addChained gives the interface the hardware address that the pod had before,
// so that nobody who talked to it has to learn anything. That its neighbours
// learn a new one instead fails no pod: the notes say why.
func (p *Plugin) addChained(ctx context.Context, c *config, args *skel.CmdArgs) error {
	result, err := c.previous()
	if err != nil {
		return err
	}
	if result == nil {
		return c.prevResult.errorf(`missing; an entry {"type": %q} without ipam stands behind the one that makes the interface`, chainedType)
	}
	if err := p.checkNetns(args); err != nil {
		return err
	}
	mac, err := p.keepMAC(ctx, c, args, result)
	if err != nil {
		p.note(fmt.Sprintf("container %s keeps no hardware address: %v", args.ContainerID, err))
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

// keepMAC returns the hardware address that the interface has in the end; nil
// where it was left alone.
func (p *Plugin) keepMAC(ctx context.Context, c *config, args *skel.CmdArgs, result *current.Result) (net.HardwareAddr, error) {
	link, err := p.Links.Link(args.Netns, args.IfName)
	if err != nil {
		return nil, err
	}
	if !ownMAC[link.Kind] || !ipam.IsUsable(link.MAC) {
		return nil, nil
	}
	who := ipam.Attachment{ContainerID: args.ContainerID, IfName: args.IfName}
	addrs := addressesOf(result, args.IfName)
	fixed := c.isMACChosen(args.Args)
	mac, ok, err := p.Service.KeepMAC(ctx, who, addrs, link.MAC, fixed)
	if err != nil || !ok || mac.String() == link.MAC.String() {
		return nil, err
	}
	if err := p.Links.SetMAC(args.Netns, args.IfName, mac); err != nil {
		_, _, told := p.Service.KeepMAC(ctx, who, addrs, link.MAC, true) // what is true now
		return nil, errors.Join(err, told)
	}
	return mac, nil
}

// addressesOf are the addresses of the result that the interface has.
func addressesOf(result *current.Result, ifName string) []netip.Addr {
	var out []netip.Addr
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) && result.Interfaces[*i].Name != ifName {
			continue
		}
		out = append(out, fromIP(ip.Address.IP))
	}
	return out
}

// isMACChosen tells whether somebody has asked for a certain hardware address: by
// CNI_ARGS, or by the runtime.
func (c *config) isMACChosen(args string) bool {
	for pair := range strings.SplitSeq(args, ";") {
		if key, value, _ := strings.Cut(pair, "="); key == "MAC" && value != "" {
			return true
		}
	}
	mac, err := c.mac.text()
	return err != nil || mac != ""
}
