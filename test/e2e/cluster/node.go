package cluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// The services of a node.
const (
	Containerd = "containerd"
	Kubelet    = "kubelet"
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

// ContainerdVersion returns the minor version of the node's containerd, "1.6" or "2.4".
func (n *Node) ContainerdVersion() string { return n.cluster.ContainerdOf(n.Index) }

// PowerOff switches the node off without a shutdown.
func (n *Node) PowerOff(ctx context.Context) error { return n.cluster.powerOff(ctx, n.Name) }

// PowerOn boots the node, with the same disk and another boot id.
func (n *Node) PowerOn(ctx context.Context) error {
	if err := n.boot(ctx); err != nil {
		return err
	}
	if err := n.writeFlannelSubnet(); err != nil {
		return err
	}
	if err := n.StartContainerd(ctx, Runtime{}); err != nil {
		return err
	}
	return n.StartKubelet(ctx)
}

func (n *Node) boot(ctx context.Context) error {
	return n.cluster.powerOn(ctx, n.Name, n.cluster.nodeAddr(n.Index))
}

// CutOff disconnects the node from the network.
func (n *Node) CutOff() error { return n.cluster.setPort(n.Name, "down") }

// Reconnect connects the node to the network again.
func (n *Node) Reconnect() error { return n.cluster.setPort(n.Name, "up") }

// Runtime is the configuration of a node's containerd.
type Runtime struct {
	ConfDir, BinDir string // of CNI; if empty, the usual ones
	Networks        int    // how many networks in ConfDir pods get an interface in; 0 is 1
}

// StartContainerd starts containerd, and waits until its CRI service responds.
func (n *Node) StartContainerd(ctx context.Context, r Runtime) error {
	if err := n.writeContainerdConfig(r); err != nil {
		return err
	}
	err := n.Machine().Start(ctx, machine.Service{Name: Containerd, Log: n.cluster.Log(n.Name, Containerd),
		Argv: []string{n.containerdBin("containerd"), "--config", "/etc/containerd/config.toml"},
		// The shim is in containerd's directory. /usr/sbin may not be in the caller's PATH.
		Env: []string{"PATH=" + n.containerdBin("") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}})
	if err != nil {
		return err
	}
	// `ctr version` is not sufficient: the CRI service starts later, and the kubelet exits if it
	// does not respond.
	return machine.Poll(ctx, 5*time.Minute, func() error {
		_, err := inspect.Sandboxes(ctx, n.Root(), "")
		return err
	})
}

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

// Ctr runs ctr on the node.
func (n *Node) Ctr(ctx context.Context, args ...string) ([]byte, error) {
	return n.Machine().Run(ctx, append([]string{n.containerdBin("ctr"), "-n", "k8s.io"}, args...)...)
}

func (n *Node) ips() string {
	var ips []string
	for _, p := range n.cluster.families(n.cluster.nodeAddr(n.Index)) {
		ips = append(ips, p.Addr().String())
	}
	return strings.Join(ips, ",")
}

func (n *Node) containerdBin(name string) string {
	if n.ContainerdVersion() == "2.4" {
		return filepath.Join(n.cluster.path("bin/containerd-2.4"), name)
	}
	return filepath.Join(n.cluster.path("bin/debian/usr/bin"), name)
}

func (n *Node) runc() string {
	for _, dir := range []string{"usr/sbin", "usr/bin"} {
		if path := n.cluster.path("bin/debian/" + dir + "/runc"); exists(path) {
			return path
		}
	}
	return "runc"
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// restrict_oom_score_adj is needed on hosts that do not allow to lower the score.
var containerdConfig = map[string]*template.Template{
	"1.6": template.Must(template.New("").Parse(`version = 2
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  sandbox_image = "{{.Pause}}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{{.Runc}}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{{.Registries}}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.BinDir}}"
    conf_dir = "{{.ConfDir}}"
    max_conf_num = {{.Networks}}
`)),
	"2.4": template.Must(template.New("").Parse(`version = 3
oom_score = 0
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{{.Pause}}"
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "{{.Registries}}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{{.Runc}}"
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{{.BinDir}}"]
    conf_dir = "{{.ConfDir}}"
    max_conf_num = {{.Networks}}
`)),
}

func (n *Node) writeContainerdConfig(r Runtime) error {
	var s strings.Builder
	err := containerdConfig[n.ContainerdVersion()].Execute(&s, map[string]any{
		"Pause": pauseImage, "Runc": n.runc(), "Networks": max(r.Networks, 1),
		"ConfDir": cmp.Or(r.ConfDir, confDir), "BinDir": cmp.Or(r.BinDir, binDir),
		"Registries": registriesDir})
	if err != nil {
		return err
	}
	return n.write("/etc/containerd/config.toml", s.String())
}

// registriesDir has a directory for each registry that containerd has to know something about.
const registriesDir = "/etc/containerd/certs.d"

// UseRegistry has the node pull from a registry without TLS at an address. Containerd reads it at
// each pull.
func (n *Node) UseRegistry(addr string) error {
	dir := n.Root() + filepath.Join(registriesDir, addr)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "hosts.toml"), fmt.Appendf(nil, `server = "http://%s"
[host."http://%[1]s"]
  capabilities = ["pull", "resolve"]
`, addr))
}

// write writes a file on the node. It uses the machine's mounts: a file that is written to the
// upper directory of a mounted overlay may not be visible in it.
func (n *Node) write(path, text string) error { return writeFile(n.Root()+path, []byte(text)) }

// writeKubeletConfig writes a configuration for a small machine: no cgroups per QoS class, no
// reserved resources, frequent status updates.
func (n *Node) writeKubeletConfig() error {
	if err := os.MkdirAll(n.Root()+"/etc/kubernetes/manifests", 0o755); err != nil {
		return err
	}
	return n.write("/etc/kubernetes/kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: true} # the API server, on a bridge of this host
  webhook: {enabled: false}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
staticPodPath: /etc/kubernetes/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [%q]
clusterDomain: cluster.local
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 3s
nodeStatusReportFrequency: 30s
nodeLeaseDurationSeconds: 10
serializeImagePulls: false
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
kubeAPIQPS: 100
kubeAPIBurst: 200
`, dnsService))
}
