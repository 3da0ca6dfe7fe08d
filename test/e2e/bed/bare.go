package bed

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// NewBare returns a bed without nodes, for benchmarks that simulate nodes. Its directory is inside
// that of a bed with nodes, with which it shares the built programs. Both can be up at the same
// time.
func NewBare(repo, dir string) (*Bed, error) {
	bare := filepath.Join(dir, "bare")
	if err := os.MkdirAll(bare, 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return nil, err
	}
	bin := filepath.Join(bare, "bin")
	if to, err := os.Readlink(bin); err != nil || to != "../bin" {
		os.Remove(bin)
		if err := os.Symlink("../bin", bin); err != nil {
			return nil, err
		}
	}
	return New(repo, bare, Options{}), nil
}

// UpControl starts only the control plane. If it fails, only built programs and logs are left.
func (b *Bed) UpControl(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("must run as root, to create namespaces, mounts and bridges")
	}
	if err := b.installTools(ctx); err != nil {
		return err
	}
	if err := b.buildParts(ctx); err != nil {
		return err
	}
	if err := b.Down(ctx); err != nil {
		return fmt.Errorf("removing a former cluster: %w", err)
	}
	defer func() {
		if err != nil {
			b.say("failed, stopping the cluster; the logs are in %s", b.path("run/logs"))
			b.takeDown(context.WithoutCancel(ctx))
		}
	}()
	return b.startBare(ctx)
}

func (b *Bed) startBare(ctx context.Context) error {
	b.say("starting the control plane")
	if err := os.MkdirAll(b.path("run"), 0o700); err != nil {
		return err
	}
	if err := b.save(); err != nil {
		return err
	}
	if err := b.writeKeys(); err != nil {
		return err
	}
	if err := b.makeBridge(); err != nil {
		return err
	}
	return b.startControlPlane(ctx)
}

// Control is the name of the control plane's machine.
const Control = control

// ControlAddr returns the address of the control plane's machine.
func (b *Bed) ControlAddr() netip.Addr { return b.controlAddr().Addr() }

// HostAddr is the host's address that all machines reach.
func (b *Bed) HostAddr() netip.Addr { return b.hostAddr().Addr() }

// Build builds a program of the repository and returns its path.
func (b *Bed) Build(ctx context.Context, p Program) (string, error) { return b.buildProgram(ctx, p) }

// Scratch returns the path of a directory that is removed with the cluster.
func (b *Bed) Scratch(name string) string { return b.path("run/" + name) }
