package cluster

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A part is software of another project. Each is built from its own go.mod, so that their
// dependencies do not conflict.
type part struct {
	name    string // directory in test/e2e/parts
	to      string // directory in bin
	tags    string
	ldflags string
	about   string
}

// kubernetesVersions are the versions of Kubernetes by minor version: the oldest that leasehold
// supports, and the newest ones.
var kubernetesVersions = map[string]string{"1.30": "v1.30.14", "1.36": "v1.36.3", "1.37": "v1.37.2"}

const defaultKubernetes = "1.36"

func (c *Cluster) parts() []part {
	minor := cmp.Or(c.Kubernetes, defaultKubernetes)
	version := kubernetesVersions[minor]
	v := "-X k8s.io/component-base/version."
	return []part{
		{name: "plugins", to: "cni", about: "CNI plugins 1.9.1"},
		{name: "flannel", to: "cni", about: "the flannel CNI plugin"},
		{name: "etcd", to: "etcd", about: "etcd"},
		{name: "containerd", to: "containerd-2.4", tags: "no_btrfs,no_devmapper,no_zfs", about: "containerd 2.4"},
		{name: c.kubernetes(), to: c.kubernetes(), about: "Kubernetes " + version + " (some minutes the first time)",
			ldflags: v + "gitVersion=" + version + " " + v + "gitMajor=1 " + v + "gitMinor=" + minor[len("1."):]},
	}
}

// kubernetes is the directory of Kubernetes' programs in bin, and of their go.mod.
func (c *Cluster) kubernetes() string { return "kubernetes-" + cmp.Or(c.Kubernetes, defaultKubernetes) }

// buildParts builds the parts that are missing or were built from another go.mod.
func (c *Cluster) buildParts(ctx context.Context) error {
	for _, p := range c.parts() {
		if err := c.buildPart(ctx, p); err != nil {
			return err
		}
	}
	return c.unpackDebian(ctx)
}

// buildPart builds a part unless it is built from the same go.mod.
func (c *Cluster) buildPart(ctx context.Context, p part) error {
	src := filepath.Join(c.Repo, "test/e2e/parts", p.name)
	mod, err := os.ReadFile(filepath.Join(src, "go.mod"))
	if err != nil {
		return err
	}
	recipe := append(mod, p.tags+p.ldflags...)
	stamp := c.path("bin/." + p.name + ".built")
	if old, err := os.ReadFile(stamp); err == nil && bytes.Equal(old, recipe) {
		return nil
	}
	args := []string{"build", "-trimpath", "-ldflags", "-s -w " + p.ldflags, "-o", c.path("bin/"+p.to) + "/"}
	if p.tags != "" {
		args = append(args, "-tags", p.tags)
	}
	if err := os.MkdirAll(c.path("bin/"+p.to), 0o755); err != nil {
		return err
	}
	if err := c.goTool(ctx, "building "+p.about, src, append(args, "tool")...); err != nil {
		return err
	}
	return writeFile(stamp, recipe)
}

// BuildMultus builds Multus and returns the directory of its plugin.
func (c *Cluster) BuildMultus(ctx context.Context) (string, error) {
	return c.path("bin/multus"), c.buildPart(ctx, part{name: "multus", to: "multus", about: "Multus"})
}

// unpackDebian downloads Debian's containerd and runc and unpacks them into bin/. Installing
// them would start containerd, and replace the host's.
func (c *Cluster) unpackDebian(ctx context.Context) error {
	dir := c.path("bin/debian")
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	c.logf("fetching Debian's containerd and runc")
	tmp := dir + ".tmp"
	if err := os.MkdirAll(tmp, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	fetch := `cd "$1"
apt-get download containerd runc || { apt-get update && apt-get download containerd runc; }
for deb in *.deb; do dpkg-deb -x "$deb" .; done
rm -- *.deb`
	if err := run(ctx, "bash", "-euc", fetch, "fetch", tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// installTools installs the programs of the host that nodes need.
func (c *Cluster) installTools(ctx context.Context) error {
	var missing []string
	for program, pkg := range map[string]string{"iptables": "iptables", "mount": "mount", "ip": "iproute2",
		"redis-cli": "redis-tools"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if matches, _ := filepath.Glob("/usr/lib/*/libseccomp.so.2"); len(matches) == 0 {
		missing = append(missing, "libseccomp2")
	}
	if len(missing) == 0 {
		return nil
	}
	c.logf("installing %s", strings.Join(missing, ", "))
	install := "apt-get install -y --no-install-recommends " + strings.Join(missing, " ")
	return run(ctx, "bash", "-euc",
		"export DEBIAN_FRONTEND=noninteractive; "+install+" || { apt-get update && "+install+"; }")
}

// goTool runs the go command.
func (c *Cluster) goTool(ctx context.Context, what, dir string, args ...string) error {
	c.logf("%s", what)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-buildvcs=false")
	_, err := runCmd(cmd)
	return err
}

func run(ctx context.Context, argv ...string) error {
	_, err := runCmd(exec.CommandContext(ctx, argv[0], argv[1:]...))
	return err
}

// runCmd runs a command and returns its standard output. Standard error is part of the error if it
// fails.
func runCmd(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, &out, &errs)
	}
	return out.String(), nil
}
