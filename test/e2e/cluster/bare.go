package cluster

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// NewBare returns a cluster without nodes, for tests that simulate nodes. Its directory is
// inside that of a cluster with nodes, with which it shares the built programs. Both can be up at
// the same time.
func NewBare(repo, dir string) (*Cluster, error) { return newInside(repo, dir, "bare", Options{}) }

func newInside(repo, dir, name string, o Options) (*Cluster, error) {
	inside := filepath.Join(dir, name)
	if err := os.MkdirAll(inside, 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink("../bin", filepath.Join(inside, "bin")); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return New(repo, inside, o), nil
}

// UpControl starts only the control plane. If it fails, only built programs and logs are left.
func (c *Cluster) UpControl(ctx context.Context) (err error) {
	if err := c.begin(ctx, c.parts()...); err != nil {
		return err
	}
	defer c.stopIfFailed(ctx, &err)
	return c.startBare(ctx)
}

func (c *Cluster) startBare(ctx context.Context) error {
	c.logf("starting the control plane")
	return inOrder(ctx, c.startNetwork, c.writeKeys, c.startControlPlane)
}

// inOrder makes steps until one fails.
func inOrder(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startNetwork creates the directory of a running cluster, and the bridge that connects its
// machines.
func (c *Cluster) startNetwork(ctx context.Context) error {
	if err := os.MkdirAll(c.path("run"), 0o700); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	return c.makeBridge(ctx)
}

// ControlAddr returns the address of the control plane's machine.
func (c *Cluster) ControlAddr() netip.Addr { return c.controlAddr().Addr() }

// HostAddr is the host's address that all machines reach.
func (c *Cluster) HostAddr() netip.Addr { return c.hostAddr().Addr() }

// Scratch returns the path of a directory that is removed with the cluster.
func (c *Cluster) Scratch(name string) string { return c.path("run/" + name) }
