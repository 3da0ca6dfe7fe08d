package cluster

import (
	"context"
	"path/filepath"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// containerd writes the configuration of containerd, and returns its service.
func (n *Node) containerd(r Runtime) (machine.Service, error) {
	const file = "/etc/containerd/config.toml"
	return machine.Service{Argv: []string{n.containerdBin("containerd"), "--config", file}}, n.configure(file,
		"containerd-"+n.containerdVersion()+".toml", map[string]any{"Pause": pauseImage, "Runc": n.OCIRuntime(),
			"Networks": r.Networks, "ConfDir": r.ConfDir, "BinDir": r.BinDir, "Registries": registriesDir})
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

// registriesDir has a directory for each registry that containerd has to know something about.
const registriesDir = "/etc/containerd/certs.d"
