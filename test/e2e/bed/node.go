package bed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/look"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// The services of a node.
const (
	Containerd = "containerd"
	Kubelet    = "kubelet"
)

// Node is one node of a bed.
type Node struct {
	Name  string
	Index int
	bed   *Bed
}

// Node finds a node by its name.
func (b *Bed) Node(name string) *Node {
	i := slices.Index(b.NodeNames(), name)
	if i < 0 {
		panic("bed: no node " + name)
	}
	return &Node{name, i, b}
}

// Machine runs commands on the node and starts and stops its services.
func (n *Node) Machine() machine.Client { return n.bed.Machine(n.Name) }

// Root is the node's file system as the host sees it.
func (n *Node) Root() string { return n.bed.Root(n.Name) }

// Disk is where a path of the node's /etc, /opt, /var/lib or /var/log lies on the host, also while the node is off.
func (n *Node) Disk(path string) string { return filepath.Join(n.bed.path("run/disks/"+n.Name), path) }

// ContainerdVersion is the release line of the node's containerd, "1.6" or "2.4".
func (n *Node) ContainerdVersion() string { return n.bed.ContainerdOf(n.Index) }

// PowerOff pulls the node's plug.
func (n *Node) PowerOff(ctx context.Context) error { return n.bed.powerOff(ctx, n.Name) }

// PowerOn boots the node again, with the same disk and another boot id.
func (n *Node) PowerOn(ctx context.Context) error {
	if err := n.bed.powerOn(ctx, n.Name, n.bed.nodeAddr(n.Index)); err != nil {
		return err
	}
	if err := n.writeFlannelSubnet(); err != nil {
		return err
	}
	if err := n.StartContainerd(ctx); err != nil {
		return err
	}
	return n.StartKubelet(ctx)
}

// CutOff takes the node off the network; Reconnect puts it back.
func (n *Node) CutOff() error { return n.bed.setPort(n.Name, false) }

// Reconnect undoes CutOff.
func (n *Node) Reconnect() error { return n.bed.setPort(n.Name, true) }

// StartContainerd starts containerd and waits until it answers.
func (n *Node) StartContainerd(ctx context.Context) error {
	if err := n.writeContainerdConfig(1); err != nil {
		return err
	}
	return n.startContainerd(ctx)
}

// StartContainerdWithNetworks is StartContainerd for pods that get an interface in each of the first k networks of
// /etc/cni/net.d.
func (n *Node) StartContainerdWithNetworks(ctx context.Context, k int) error {
	if err := n.writeContainerdConfig(k); err != nil {
		return err
	}
	return n.startContainerd(ctx)
}

func (n *Node) startContainerd(ctx context.Context) error {
	err := n.Machine().Start(ctx, machine.Start{Name: Containerd, Log: n.bed.Log(n.Name, Containerd),
		Argv: []string{n.containerdBin("containerd"), "--config", "/etc/containerd/config.toml"},
		// The shim stands beside containerd; Debian's /usr/sbin is not on everybody's PATH.
		Env: []string{"PATH=" + n.containerdBin("") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}})
	if err != nil {
		return err
	}
	// Not `ctr version`: the part that the kubelet asks is there later, and the kubelet gives up if it is not.
	return poll(ctx, 30*time.Second, func() error {
		_, err := look.Sandboxes(ctx, n.Root(), "")
		return err
	})
}

// StartKubelet starts the kubelet and does not wait for anything.
func (n *Node) StartKubelet(ctx context.Context) error {
	argv := []string{n.bed.path("bin/kubernetes/kubelet"), "--config=/etc/kubernetes/kubelet.yaml",
		"--kubeconfig=" + n.bed.path("run/"+n.Name+".kubeconfig"), "--hostname-override=" + n.Name,
		"--node-ip=" + n.ips(), "--v=2"}
	return n.Machine().Start(ctx, machine.Start{Name: Kubelet, Log: n.bed.Log(n.Name, Kubelet), Argv: argv})
}

// Stop asks a service to end, Kill does not ask.
func (n *Node) Stop(ctx context.Context, service string) error { return n.Machine().Stop(ctx, service) }

// Kill ends a service at once.
func (n *Node) Kill(ctx context.Context, service string) error { return n.Machine().Kill(ctx, service) }

// Ctr runs containerd's own client on the node.
func (n *Node) Ctr(ctx context.Context, args ...string) ([]byte, error) {
	return n.Machine().Run(ctx, append([]string{n.containerdBin("ctr"), "-n", "k8s.io"}, args...)...)
}

func (n *Node) ips() string {
	var ips []string
	for _, p := range n.bed.families(n.bed.nodeAddr(n.Index)) {
		ips = append(ips, p.Addr().String())
	}
	return strings.Join(ips, ",")
}

func (n *Node) containerdBin(name string) string {
	if n.ContainerdVersion() == "2.4" {
		return filepath.Join(n.bed.path("bin/containerd-2.4"), name)
	}
	return filepath.Join(n.bed.path("bin/debian/usr/bin"), name)
}

func (n *Node) runc() string {
	for _, dir := range []string{"usr/sbin", "usr/bin"} {
		if path := n.bed.path("bin/debian/" + dir + "/runc"); exists(path) {
			return path
		}
	}
	return "runc"
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// restrict_oom_score_adj: a machine that may not lower the score starts no sandbox without it.
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
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
    max_conf_num = {{.Networks}}
`)),
	"2.4": template.Must(template.New("").Parse(`version = 3
oom_score = 0
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{{.Pause}}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{{.Runc}}"
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
    max_conf_num = {{.Networks}}
`)),
}

func (n *Node) writeContainerdConfig(networks int) error {
	var s strings.Builder
	err := containerdConfig[n.ContainerdVersion()].Execute(&s, map[string]any{
		"Pause": pauseImage, "Runc": n.runc(), "Networks": networks})
	if err != nil {
		return err
	}
	return n.write("/etc/containerd/config.toml", s.String())
}

// write writes a file of the node. It goes through the machine's own view: a file put under the upper folder of a
// mounted overlay need not show.
func (n *Node) write(path, text string) error { return writeFile(n.Root()+path, []byte(text)) }

// writeKubeletConfig writes a configuration for a small machine: no cgroups per QoS, nothing reserved, quick reports.
func (n *Node) writeKubeletConfig() error {
	if err := os.MkdirAll(n.Root()+"/etc/kubernetes/manifests", 0o755); err != nil {
		return err
	}
	return n.write("/etc/kubernetes/kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: false}
  x509: {clientCAFile: %q}
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
`, n.bed.path("run/pki/ca.crt"), dnsService))
}
