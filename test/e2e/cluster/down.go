package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// Down stops the cluster in its directory, if there is one, and removes everything except
// built programs.
func (c *Cluster) Down(ctx context.Context) error {
	if err := c.takeDown(ctx); err != nil {
		return err
	}
	return os.RemoveAll(c.path("run"))
}

// takeDown stops the cluster's machines, and removes their links and cgroups.
func (c *Cluster) takeDown(ctx context.Context) error {
	running := c
	if old, err := Load(c.Repo, c.Dir); err == nil {
		running = old
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	var names []string
	for name := range running.Machines {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		errs = append(errs, running.powerOff(ctx, name))
	}
	return errors.Join(append(errs, detach(ctx, c.bridge()),
		machine.Poll(ctx, 10*time.Second, func() error { return removeCgroups(ctx, c.cgroups()) }))...)
}

// cgroup returns the root of a machine's cgroups on the host.
func (c *Cluster) cgroup(machine string) string { return c.cgroups() + "/" + machine }

func (c *Cluster) cgroups() string { return "/leasehold-" + c.bridge() }

// removeCgroups removes the cgroups of a machine, or of all machines. Only empty cgroups can be
// removed, so it does not affect running processes.
func removeCgroups(ctx context.Context, group string) error {
	roots, err := filepath.Glob("/sys/fs/cgroup/*" + group) // of version 1
	if err != nil {
		return err
	}
	for _, root := range append(roots, "/sys/fs/cgroup"+group) {
		if !exists(root) {
			continue
		}
		run(ctx, "find", root, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";")
		if exists(root) {
			return fmt.Errorf("%s is in use", root)
		}
	}
	return nil
}
