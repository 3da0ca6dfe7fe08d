package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// makeBridge creates the bridge on the host that connects all machines.
func (c *Cluster) makeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = c.bridge()
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("bridge %s: %w", attrs.Name, err)
	}
	for _, p := range c.families(c.hostAddr()) {
		if err := netlink.AddrAdd(br, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
			return fmt.Errorf("address %v of %s: %w", p, attrs.Name, err)
		}
	}
	return netlink.LinkSetUp(br)
}

func (c *Cluster) families(p netip.Prefix) []netip.Prefix {
	if c.DualStack {
		return []netip.Prefix{p, c.v6(p)}
	}
	return []netip.Prefix{p}
}

// port returns the name of the host's end of a machine's veth.
func (c *Cluster) port(name string) string { return c.bridge() + "-" + name }

// attach creates eth0 of a machine, with routes to the pods of all nodes. It is one sequence of
// steps.
func (c *Cluster) attach(name string, pid int, addr netip.Prefix) error {
	br, err := netlink.LinkByName(c.bridge())
	if err != nil {
		return err
	}
	if err := detach(c.port(name)); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = c.port(name), br.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer inside.Close()
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, p := range c.families(addr) {
		a := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			a.Flags = 0x02 // IFA_F_NODAD: the address is unique, and the kubelet does not wait for DAD
		}
		if err := inside.AddrAdd(eth0, a); err != nil {
			return err
		}
	}
	if err := inside.LinkSetUp(eth0); err != nil {
		return err
	}
	for i := range c.Nodes {
		via := c.nodeAddr(i)
		if via == addr {
			continue
		}
		routes := []*netlink.Route{{Dst: ipNet(c.PodSubnet(i)), Gw: via.Addr().AsSlice(),
			LinkIndex: eth0.Attrs().Index}}
		if c.DualStack {
			routes = append(routes, &netlink.Route{Dst: ipNet(c.PodSubnet6(i)), Gw: c.v6(via).Addr().AsSlice(),
				LinkIndex: eth0.Attrs().Index})
		}
		for _, r := range routes {
			if err := inside.RouteAdd(r); err != nil {
				return fmt.Errorf("route %v: %w", r, err)
			}
		}
	}
	if err := c.routeToAPI(inside, eth0, addr); err != nil {
		return fmt.Errorf("route to the API server's Service: %w", err)
	}
	// The kubelet requires a default route. Its gateway forwards nothing.
	return inside.RouteAdd(&netlink.Route{Gw: c.hostAddr().Addr().AsSlice(), LinkIndex: eth0.Attrs().Index})
}

// routeToAPI makes the cluster IP of the Service "kubernetes" reachable without kube-proxy: the
// control plane has the address and listens on the port, and all other machines have a route to it.
func (c *Cluster) routeToAPI(inside *netlink.Handle, eth0 netlink.Link, addr netip.Prefix) error {
	service := ipNet(netip.MustParsePrefix(apiService + "/32"))
	if addr == c.controlAddr() {
		return inside.AddrAdd(eth0, &netlink.Addr{IPNet: service})
	}
	return inside.RouteAdd(&netlink.Route{Dst: service, Gw: c.controlAddr().Addr().AsSlice(),
		LinkIndex: eth0.Attrs().Index})
}

// detach removes a link of the host, if it exists.
func detach(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// setPort sets the host's end of a machine's veth up or down.
func (c *Cluster) setPort(name string, up bool) error {
	link, err := netlink.LinkByName(c.port(name))
	if err != nil {
		return err
	}
	if up {
		return netlink.LinkSetUp(link)
	}
	return netlink.LinkSetDown(link)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
