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

func (c *Cluster) buildLeasectl(ctx context.Context) error {
	_, err := c.Build(ctx, leasectl)
	return err
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

// BuildRelease builds a release of the source tree for this machine's architecture, into a
// directory that is removed with the cluster. Its images have names of the registry.
func (c *Cluster) BuildRelease(ctx context.Context, version, registry string) (dir string, err error) {
	program, err := c.Build(ctx, releaseTool)
	if err != nil {
		return "", err
	}
	dir = c.path("run/release-" + version)
	c.logf("building release %s", version)
	return dir, run(ctx, program, "build", "-repo", c.Repo, "-o", dir, "-arch", goarch, "-version", version,
		"-registry", registry)
}

// BuildReleaseOf builds a release of a commit, with the tool of that commit.
func (c *Cluster) BuildReleaseOf(ctx context.Context, commit, version, registry string) (dir string, err error) {
	tree := c.path("run/tree-" + version)
	dir = c.path("run/release-" + version)
	c.logf("building release %s of %s", version, commit)
	defer os.RemoveAll(tree)
	if err := os.RemoveAll(tree); err != nil {
		return "", err
	}
	if err := run(ctx, "git", "clone", "--quiet", "--shared", "--no-checkout", c.Repo, tree); err != nil {
		return "", err
	}
	if err := run(ctx, "git", "-C", tree, "checkout", "--quiet", "--detach", commit); err != nil {
		return "", err
	}
	tool := c.path("bin/own/release-" + version)
	if err := c.goTool(ctx, "building its tool", filepath.Join(tree, releaseTool.Module), "build", "-o", tool,
		"./"+releaseTool.Package); err != nil {
		return "", err
	}
	return dir, run(ctx, tool, "build", "-repo", tree, "-o", dir, "-arch", goarch, "-version", version,
		"-registry", registry)
}

// PushRelease pushes the images of a release, which may have been built for another registry.
func (c *Cluster) PushRelease(ctx context.Context, dir, registry string) error {
	program, err := c.Build(ctx, releaseTool)
	if err != nil {
		return err
	}
	return run(ctx, program, "push", "-o", dir, "-registry", registry)
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
