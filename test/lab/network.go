package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/leasehold-cni/leasehold/test/must"
)

// A Conf is a piece of CNI configuration.
type Conf = map[string]any

// A Network is a CNI network configuration list on a node.
type Network struct {
	Name    string
	Version string
	Main    Conf // the first plugin's entry

	node *Node
	list *libcni.NetworkConfigList
}

// Network returns a network configuration list with the given plugins.
func (n *Node) Network(name, version string, plugins ...Conf) *Network {
	n.t.Helper()
	bytes, err := json.Marshal(Conf{"cniVersion": version, "name": name, "plugins": plugins})
	must.Succeed(n.t, err, "network", name)
	net := n.List(bytes)
	net.Version, net.Main = version, plugins[0]
	return net
}

// List returns the network configuration list with the given content, whose Version and Main are
// not set.
func (n *Node) List(content []byte) *Network {
	n.t.Helper()
	list, err := libcni.NetworkConfFromBytes(content)
	must.Succeed(n.t, err, "network configuration", string(content))
	return &Network{Name: list.Name, node: n, list: list}
}

// IPAM returns an `ipam` section with one range set for each subnet.
func (n *Node) IPAM(subnets ...string) Conf {
	var ranges [][]Conf
	for _, subnet := range subnets {
		ranges = append(ranges, []Conf{{"subnet": subnet}})
	}
	return Conf{"type": "leasehold", "ranges": ranges, "dataDir": n.NetworksDir()}
}

// With returns a copy of conf with the keys of more added.
func With(conf, more Conf) Conf {
	conf = maps.Clone(conf)
	maps.Copy(conf, more)
	return conf
}

var links atomic.Int64

// Link returns a unique link name.
func Link(prefix string) string { return fmt.Sprintf("%s%d", prefix, links.Add(1)) }

// Bridge, PTP, Macvlan and Flannel return the configuration of the upstream plugins with an `ipam`
// section, and the capability to receive annotations.
func (n *Node) Bridge(ipam Conf) Conf {
	return annotated(Conf{"type": "bridge", "bridge": Link("br"), "isGateway": true, "ipam": ipam})
}

func (n *Node) PTP(ipam Conf) Conf { return annotated(Conf{"type": "ptp", "ipam": ipam}) }

// Macvlan also creates the master link.
func (n *Node) Macvlan(ipam Conf) Conf {
	master := Link("eth")
	err := n.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: master}, PeerName: Link("eth")}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		for _, name := range []string{veth.Name, veth.PeerName} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return err
			}
		}
		return nil
	})
	must.Succeed(n.t, err, "master link")
	return annotated(Conf{"type": "macvlan", "master": master, "ipam": ipam})
}

// Flannel also writes the subnet file, as flanneld does. The plugin delegates to bridge.
func (n *Node) Flannel(ipam Conf, subnet, subnet6 string) Conf {
	lines := []string{"FLANNEL_MTU=1450", "FLANNEL_IPMASQ=false"}
	for prefix, subnet := range map[string]string{"FLANNEL_": subnet, "FLANNEL_IPV6_": subnet6} {
		if subnet != "" {
			lines = append(lines, prefix+"NETWORK="+subnet, prefix+"SUBNET="+subnet)
		}
	}
	env := filepath.Join(n.mkdir("flannel"), Link("subnet")+".env")
	must.Succeed(n.t, os.WriteFile(env, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	return annotated(Conf{
		"type": "flannel", "subnetFile": env, "dataDir": n.mkdir("flannel"), "ipam": ipam,
		"delegate": Conf{"bridge": Link("cni"), "isDefaultGateway": true},
	})
}

func annotated(conf Conf) Conf {
	conf["capabilities"] = Conf{Annotations: true}
	return conf
}

// Stdin returns the configuration that the network's first plugin passes to its IPAM plugin.
func (net *Network) Stdin(more Conf) string {
	conf := With(With(net.Main, Conf{"cniVersion": net.Version, "name": net.Name}), more)
	bytes, err := json.Marshal(conf)
	must.Succeed(net.node.t, err, "network", net.Name)
	return string(bytes)
}

// GC calls GC with the valid attachments.
func (net *Network) GC(valid ...types.GCAttachment) error {
	return net.node.cni.GCNetworkList(context.Background(), net.list, &libcni.GCArgs{ValidAttachments: valid})
}

// Status calls STATUS.
func (net *Network) Status() error {
	return net.node.cni.GetStatusNetworkList(context.Background(), net.list)
}
