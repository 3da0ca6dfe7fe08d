package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	pauseImage = "leasehold/pause:test"
	// echoImage has the name in the manifest of Kruise's manual, so that the manifest can be used
	// unchanged.
	echoImage = "cilium/echoserver:latest"
)

// testImages are the images that only the test cluster needs, as arguments of `release images`.
var testImages = []string{
	pauseImage + "=test/e2e/images/pause",
	echoImage + "=test/e2e/images/echo",
}

// Program is a Go program and its module, relative to the repository.
type Program struct{ Module, Package string }

var (
	leasectl    = Program{".", "cmd/leasectl"}
	releaseTool = Program{"scripts/tools", "release"}
)

// Leasectl returns the path of leasectl, which must be run on a node.
func (c *Cluster) Leasectl() string { return c.path("bin/own/leasectl") }

// buildLeasectl builds leasectl, which beside that has the name of kubectl's plugin.
func (c *Cluster) buildLeasectl(ctx context.Context) error {
	program, err := c.Build(ctx, leasectl)
	if err != nil {
		return err
	}
	return run(ctx, "ln", "-sf", filepath.Base(program), filepath.Join(filepath.Dir(program), "kubectl-leasehold"))
}

// buildImages builds the images of the test cluster and leasehold's own, into images/.
func (c *Cluster) buildImages(ctx context.Context) error {
	c.logf("building images")
	flannel, err := c.flannelImages(ctx)
	if err != nil {
		return err
	}
	if _, err := c.runImages(ctx, append(flannel, testImages...)...); err != nil {
		return err
	}
	_, err = c.runImages(ctx, "-tag", "test")
	return err
}

func (c *Cluster) runImages(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Repo, "scripts/release"),
		append([]string{"images", "-o", c.path("images")}, args...)...)
	// The same version always, so that images change only with their programs.
	cmd.Env = append(os.Environ(), "VERSION=test", "TAG=devel")
	return runCmd(cmd)
}

// Release builds a release for this machine's architecture, into a directory that is removed with
// the cluster, and pushes its images to a registry. It is one of the source tree, or of a commit
// with the tool of that commit.
func (c *Cluster) Release(ctx context.Context, version, commit, registry string) (dir string, err error) {
	tool, err := c.Build(ctx, releaseTool)
	if err != nil {
		return "", err
	}
	c.logf("building release %s %s", version, commit)
	dir = c.path("run/release-" + version)
	tree, builder := c.Repo, tool
	if commit != "" {
		tree, builder = c.path("run/tree-"+version), c.path("bin/own/release-"+version)
		defer os.RemoveAll(tree)
		if err := c.checkOut(ctx, commit, tree, builder); err != nil {
			return "", err
		}
	}
	if err := run(ctx, builder, "build", "-repo", tree, "-o", dir, "-arch", goarch, "-version", version,
		"-registry", registry); err != nil {
		return "", err
	}
	return dir, run(ctx, tool, "push", "-o", dir, "-registry", registry)
}

// checkOut makes a tree of a commit, and builds its tool for releases.
func (c *Cluster) checkOut(ctx context.Context, commit, tree, tool string) error {
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"git", "clone", "--quiet", "--shared", "--no-checkout", c.Repo, tree},
		{"git", "-C", tree, "checkout", "--quiet", "--detach", commit},
	} {
		if err := run(ctx, argv...); err != nil {
			return err
		}
	}
	return c.goTool(ctx, "building its tool", filepath.Join(tree, releaseTool.Module), "build", "-o", tool,
		"./"+releaseTool.Package)
}

// BuildHelm builds Helm, and returns its path.
func (c *Cluster) BuildHelm(ctx context.Context) (string, error) {
	to := c.path("bin/own/")
	return filepath.Join(to, "helm"), c.goTool(ctx, "building Helm", filepath.Join(c.Repo, "test/chart"),
		"build", "-trimpath", "-ldflags", "-s -w", "-o", to+"/", "tool")
}

// Build builds a program of the repository and returns its path.
func (c *Cluster) Build(ctx context.Context, p Program) (string, error) {
	to := c.path("bin/own/" + filepath.Base(p.Package))
	dir := filepath.Join(c.Repo, p.Module)
	return to, c.goTool(ctx, "building "+p.Package, dir,
		"build", "-trimpath", "-ldflags", "-s -w", "-o", to, "./"+p.Package)
}

// Images returns the directory of the archives of all built images.
func (c *Cluster) Images() string { return c.path("images") }

// ImportImages imports the images whose archives are in a directory.
func (n *Node) ImportImages(ctx context.Context, dir string) error {
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		return err
	}
	if n.IsCRIO() {
		return n.pullImages(ctx, archives)
	}
	for _, a := range archives {
		if _, err := n.ctr(ctx, "images", "import", a); err != nil {
			return err
		}
	}
	return nil
}
