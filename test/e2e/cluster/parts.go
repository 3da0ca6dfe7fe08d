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

const defaultKubernetes = "1.36"

// kubernetes is the directory of Kubernetes' programs in bin, and of their go.mod.
func (c *Cluster) kubernetes() string { return "kubernetes-" + cmp.Or(c.Kubernetes, defaultKubernetes) }

// buildParts builds software of other projects, unless it was built before: see
// test/e2e/parts/build.
func (c *Cluster) buildParts(ctx context.Context, parts ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Repo, "test/e2e/parts/build"),
		append([]string{c.path("bin")}, parts...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(parts, ", "), err)
	}
	return nil
}

// BuildMultus builds Multus and returns the directory of its plugin.
func (c *Cluster) BuildMultus(ctx context.Context) (string, error) {
	return c.path("bin/multus"), c.buildParts(ctx, "multus")
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
