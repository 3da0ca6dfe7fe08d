package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// object is a piece of CNI configuration.
type object = map[string]any

// Network is a CNI network of a node.
type Network struct {
	Name    string
	Type    string // flannel, bridge, ptp, macvlan, kube-router or kind
	Version string // cniVersion; if empty, the usual one for the plugin
	Subnets []netip.Prefix
	// Stock uses the configuration as it is shipped: without the capability, with host-local, and
	// without subnets if the network plugin adds them.
	Stock bool
	// WithoutAnnotations keeps the pods' annotations from a plugin other than flannel.
	WithoutAnnotations bool
	// HostPorts appends portmap to a plugin other than flannel, which has it anyway.
	HostPorts bool
	// IPAM are further keys of the ipam section.
	IPAM map[string]any
}

// Conflist returns the network configuration list for the container runtime: those of flannel,
// kube-router as k0s has it, and kindnetd are as these programs write them. kube-router adds the
// subnet of the node where it is missing.
func (n Network) Conflist() (string, error) {
	section := object{"type": "leasehold"}
	maps.Copy(section, n.IPAM)
	if n.Stock {
		section["type"] = "host-local"
	}
	switch n.Type {
	case "kind":
		section["dataDir"], section["routes"] = n.DataDir(), n.routes()
	case "ptp":
		section["routes"] = n.routes()
	}
	if n.Type != "flannel" && !(n.Type == KubeRouter && n.Stock) {
		section["ranges"] = n.ranges()
	}
	text, err := json.Marshal(section)
	if err != nil {
		return "", err
	}
	return fill(n.Type+".conflist", struct {
		Network
		Bridge, Section string
	}{n, n.bridge(), string(text)})
}

func (n Network) ranges() (ranges []any) {
	for _, p := range n.Subnets {
		ranges = append(ranges, []any{object{"subnet": p.String()}})
	}
	return ranges
}

// routes returns the default routes.
func (n Network) routes() (routes []any) {
	for _, p := range n.Subnets {
		routes = append(routes, object{"dst": netip.PrefixFrom(p.Addr(), 0).Masked().String()})
	}
	return routes
}

// DataDir returns the directory of host-local's files of all networks.
func (n Network) DataDir() string {
	if n.Type == "kind" {
		return "/run/cni-ipam-state"
	}
	return "/var/lib/cni/networks"
}

// Path returns the path of the configuration, which is the i-th of a node.
func (n Network) Path(i int) string {
	name := n.Name
	if n.Type == "kube-router" {
		name = "kuberouter"
	}
	return fmt.Sprintf("%s/%d-%s.conflist", confDir, 10+i, name)
}

// bridge returns the name of the network's bridge, which fits into a link name.
func (n Network) bridge() string {
	if n.Type == "kube-router" {
		return "kube-bridge"
	}
	h := fnv.New32a()
	h.Write([]byte(n.Name))
	return fmt.Sprintf("br-%08x", h.Sum32())
}

// DefaultNetwork returns the network of the cluster's options.
func (n *Node) DefaultNetwork() Network {
	name := map[string]string{"flannel": "cbr0", "bridge": "cni0", "ptp": "ptp0", "kube-router": "mynet",
		"kind": "kindnet"}[n.cluster.CNI]
	subnets := []netip.Prefix{n.cluster.PodSubnet(n.Index)}
	if n.cluster.DualStack {
		subnets = append(subnets, n.cluster.PodSubnet6(n.Index))
	}
	return Network{Name: name, Type: n.cluster.CNI, Subnets: subnets, HostPorts: true}
}

const (
	confDir = "/etc/cni/net.d"
	binDir  = "/opt/cni/bin"
)

// SetNetworks replaces the node's CNI configuration, and waits until the runtime has loaded the
// first network. The node should have no pods, because the runtime would call DEL for them with the
// new configuration.
func (n *Node) SetNetworks(ctx context.Context, networks ...Network) error {
	keep, first := map[string]bool{}, ""
	for i, network := range networks {
		list, err := network.Conflist()
		if err != nil {
			return err
		}
		path := network.Path(i)
		if err := n.write(path, list); err != nil {
			return err
		}
		keep[filepath.Base(path)], first = true, cmp.Or(first, list)
	}
	entries, err := os.ReadDir(n.Root() + confDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep[e.Name()] {
			if err := os.Remove(filepath.Join(n.Root()+confDir, e.Name())); err != nil {
				return err
			}
		}
	}
	return n.WaitLoaded(ctx, networks[0].Name, first)
}

// SetConfiguration makes the configuration of a network the one that the container runtime loads,
// before that of SetNetworks, which removes it when it is called next.
func (n *Node) SetConfiguration(ctx context.Context, network, text string) error {
	if err := n.write(filepath.Join(confDir, "00-scenario.conf"), text); err != nil {
		return err
	}
	return n.WaitLoaded(ctx, network, "")
}

// WaitLoaded waits until the runtime, if it runs, has loaded a network, and from this text unless
// that is empty.
func (n *Node) WaitLoaded(ctx context.Context, network, text string) error {
	if n.Machine().Services()[ContainerRuntime] == 0 {
		return nil
	}
	return machine.Poll(ctx, 5*time.Minute, func() error {
		if n.IsCRIO() {
			return n.loadedByCRIO(network)
		}
		loaded, err := inspect.IsLoaded(ctx, n.Root(), network, text)
		if err == nil && !loaded {
			err = fmt.Errorf("the runtime has not loaded %s", network)
		}
		return err
	})
}

// RemoveBridge removes the bridge of a network without pods, so that another network can use its
// subnet.
func (n *Node) RemoveBridge(ctx context.Context, network Network) error {
	_, err := n.Machine().Run(ctx, "sh", "-c", `if ip link show "$0" >/dev/null 2>&1; then ip link delete "$0"; fi`,
		network.bridge())
	return err
}

// writeFlannelSubnet writes the file that flanneld writes for the flannel plugin.
func (n *Node) writeFlannelSubnet(context.Context) error {
	subnet := n.cluster.PodSubnet(n.Index)
	gateway := netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
	return n.write("/run/flannel/subnet.env", fmt.Sprintf(
		"FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n",
		n.cluster.podNetwork(), gateway))
}

// Upstream returns the path of an upstream plugin as it was built. Nodes can read it.
func (c *Cluster) Upstream(plugin string) string { return c.path("bin/cni/" + plugin) }

// installPlugins installs the upstream plugins on the node. The DaemonSet installs leasehold's.
func (n *Node) installPlugins(context.Context) error {
	programs, err := filepath.Glob(n.cluster.path("bin/cni/*"))
	for _, p := range programs {
		err = cmp.Or(err, n.InstallPlugin(p))
	}
	return err
}

// InstallPlugin installs a plugin on the node.
func (n *Node) InstallPlugin(program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return writeFileMode(n.Disk(filepath.Join(binDir, filepath.Base(program))), data, 0o755)
}

// prepare sets up a machine as a node after its first boot.
func (n *Node) prepare(ctx context.Context) error {
	return inOrder(ctx, n.installPlugins, n.writeFlannelSubnet,
		func(ctx context.Context) error { return n.SetNetworks(ctx, n.DefaultNetwork()) },
		n.writeKubeletConfig, n.startRuntime,
		func(ctx context.Context) error { return n.ImportImages(ctx, n.cluster.Images()) })
}
