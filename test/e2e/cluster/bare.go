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
func NewBare(repo, dir string) (*Cluster, error) {
	bare := filepath.Join(dir, "bare")
	if err := os.MkdirAll(bare, 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink("../bin", filepath.Join(bare, "bin")); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return New(repo, bare, Options{}), nil
}

// UpControl starts only the control plane. If it fails, only built programs and logs are left.
func (c *Cluster) UpControl(ctx context.Context) (err error) {
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.stopIfFailed(ctx, &err)
	return c.startBare(ctx)
}

func (c *Cluster) startBare(ctx context.Context) error {
	c.logf("starting the control plane")
	if err := os.MkdirAll(c.path("run"), 0o700); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	if err := c.writeKeys(); err != nil {
		return err
	}
	if err := c.makeBridge(ctx); err != nil {
		return err
	}
	return c.startControlPlane(ctx)
}

// Control is the name of the control plane's machine.
const Control = control

// ControlAddr returns the address of the control plane's machine.
func (c *Cluster) ControlAddr() netip.Addr { return c.controlAddr().Addr() }

// HostAddr is the host's address that all machines reach.
func (c *Cluster) HostAddr() netip.Addr { return c.hostAddr().Addr() }

// Build builds a program of the repository and returns its path.
func (c *Cluster) Build(ctx context.Context, p Program) (string, error) {
	return c.buildProgram(ctx, p)
}

// Scratch returns the path of a directory that is removed with the cluster.
func (c *Cluster) Scratch(name string) string { return c.path("run/" + name) }
