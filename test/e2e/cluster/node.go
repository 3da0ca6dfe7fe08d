package cluster

import (
	"context"
	"embed"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// The services of a node.
const (
	ContainerRuntime = "runtime" // containerd or CRI-O
	Kubelet          = "kubelet"
)

// Node is one node of a cluster.
type Node struct {
	Name    string
	Index   int
	cluster *Cluster
}

// Node returns a node by its name. It panics if there is none.
func (c *Cluster) Node(name string) *Node {
	i := slices.Index(c.NodeNames(), name)
	if i < 0 {
		panic("cluster: no node " + name)
	}
	return &Node{name, i, c}
}

// Machine runs the node's commands and services.
func (n *Node) Machine() machine.Machine { return n.cluster.Machine(n.Name) }

// Root returns the path of the node's file system on the host.
func (n *Node) Root() string { return n.cluster.Root(n.Name) }

// Disk returns the path on the host of a file in the node's /etc, /opt, /var/lib or /var/log. It is
// valid while the node is off, too.
func (n *Node) Disk(path string) string {
	return filepath.Join(n.cluster.path("run/disks/"+n.Name), path)
}

// PowerOff switches the node off without a shutdown.
func (n *Node) PowerOff(ctx context.Context) error { return n.cluster.powerOff(ctx, n.Name) }

// PowerOn boots the node, with the same disk and another boot id.
func (n *Node) PowerOn(ctx context.Context) error {
	return inOrder(ctx, n.boot, n.writeFlannelSubnet, n.startRuntime, n.startKubernetes)
}

// startKubernetes starts the kubelet, and the network plugin's program if it has one.
func (n *Node) startKubernetes(ctx context.Context) error {
	if err := n.StartKubelet(ctx); err != nil || n.cluster.CNI != KubeRouter {
		return err
	}
	return n.StartKubeRouter(ctx)
}

func (n *Node) boot(ctx context.Context) error {
	return n.cluster.powerOn(ctx, n.Name, n.cluster.nodeAddr(n.Index))
}

// CutOff disconnects the node from the network.
func (n *Node) CutOff() error { return n.cluster.setPort(n.Name, "down") }

// Reconnect connects the node to the network again.
func (n *Node) Reconnect() error { return n.cluster.setPort(n.Name, "up") }

// StartKubelet starts the kubelet, without waiting for it.
func (n *Node) StartKubelet(ctx context.Context) error {
	argv := []string{n.cluster.path("bin/" + n.cluster.kubernetes() + "/kubelet"),
		"--config=/etc/kubernetes/kubelet.yaml",
		"--kubeconfig=" + n.cluster.path("run/"+n.Name+".kubeconfig"), "--hostname-override=" + n.Name,
		"--node-ip=" + n.ips(), "--v=2"}
	return n.Machine().Start(ctx, machine.Service{Name: Kubelet, Log: n.cluster.Log(n.Name, Kubelet), Argv: argv})
}

// Stop terminates a service with SIGTERM.
func (n *Node) Stop(ctx context.Context, service string) error { return n.Machine().Stop(ctx, service) }

// Kill terminates a service with SIGKILL.
func (n *Node) Kill(ctx context.Context, service string) error { return n.Machine().Kill(ctx, service) }

func (n *Node) ips() string {
	var ips []string
	for _, p := range n.cluster.families(n.cluster.nodeAddr(n.Index)) {
		ips = append(ips, p.Addr().String())
	}
	return strings.Join(ips, ",")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// write writes a file on the node. It uses the machine's mounts: a file that is written to the
// upper directory of a mounted overlay may not be visible in it.
func (n *Node) write(path, text string) error { return writeFile(n.Root()+path, []byte(text)) }

// configs are the configurations of the programs of a node and of its networks, as templates.
//
//go:embed config
var configs embed.FS

// fill fills a template of configs.
func fill(name string, values any) (string, error) {
	t, err := template.ParseFS(configs, "config/"+name)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = t.Execute(&text, values)
	return text.String(), err
}

// configure writes a configuration to a path on the node.
func (n *Node) configure(path, name string, values any) error {
	text, err := fill(name, values)
	if err != nil {
		return err
	}
	return n.write(path, text)
}

// writeKubeletConfig writes a configuration for a small machine: no cgroups per QoS class, no
// reserved resources, frequent status updates.
func (n *Node) writeKubeletConfig(context.Context) error {
	if err := os.MkdirAll(n.Root()+"/etc/kubernetes/manifests", 0o755); err != nil {
		return err
	}
	return n.configure("/etc/kubernetes/kubelet.yaml", "kubelet.yaml", map[string]any{"Socket": n.socket(),
		"DNS": dnsService})
}
