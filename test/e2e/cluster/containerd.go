package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// containerd writes the configuration of containerd, and returns its service.
func (n *Node) containerd(r Runtime) (machine.Service, error) {
	const file = "/etc/containerd/config.toml"
	var s strings.Builder
	err := containerdConfig[n.containerdVersion()].Execute(&s, map[string]any{
		"Pause": pauseImage, "Runc": n.OCIRuntime(), "Networks": r.Networks, "ConfDir": r.ConfDir, "BinDir": r.BinDir,
		"Registries": registriesDir})
	if err != nil {
		return machine.Service{}, err
	}
	return machine.Service{Argv: []string{n.containerdBin("containerd"), "--config", file}}, n.write(file, s.String())
}

// containerdVersion returns the minor version of the node's containerd, "1.6" or "2.4".
func (n *Node) containerdVersion() string { return n.cluster.ContainerdOf(n.Index) }

// containerdBin returns the path of a program of containerd.
func (n *Node) containerdBin(name string) string {
	if n.containerdVersion() == "2.4" {
		return filepath.Join(n.cluster.path("bin/containerd-2.4"), name)
	}
	return filepath.Join(n.cluster.path("bin/debian/usr/bin"), name)
}

func (n *Node) ctr(ctx context.Context, args ...string) ([]byte, error) {
	return n.Machine().Run(ctx, append([]string{n.containerdBin("ctr"), "-n", "k8s.io"}, args...)...)
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

// registriesDir has a directory for each registry that containerd has to know something about.
const registriesDir = "/etc/containerd/certs.d"

// useRegistryContainerd writes what containerd reads at each pull.
func (n *Node) useRegistryContainerd(addr string) error {
	dir := n.Root() + filepath.Join(registriesDir, addr)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "hosts.toml"), fmt.Appendf(nil, `server = "http://%s"
[host."http://%[1]s"]
  capabilities = ["pull", "resolve"]
`, addr))
}
