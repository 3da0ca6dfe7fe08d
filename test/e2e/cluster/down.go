package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
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
		poll(ctx, 10*time.Second, func() error { return removeCgroups(c.cgroups()) }))...)
}

// cgroup returns the root of a machine's cgroups on the host.
func (c *Cluster) cgroup(machine string) string { return c.cgroups() + "/" + machine }

func (c *Cluster) cgroups() string { return "/leasehold-" + c.bridge() }

// removeCgroups removes the cgroups of a machine, or of all machines. Only empty cgroups can be
// removed, so it does not affect running processes.
func removeCgroups(group string) error {
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*") // of version 1
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range append(hierarchies, "/sys/fs/cgroup") {
		var dirs []string
		filepath.WalkDir(root+group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
