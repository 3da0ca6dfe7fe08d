package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A hierarchy is a mounted cgroup hierarchy of the host, of version 1 or 2.
type hierarchy struct {
	dir     string // mount point
	fstype  string
	options string // controllers and name, for version 1
}

// IsolateCgroups moves this process into its own cgroup in every hierarchy, and unshares the cgroup
// namespace with that as its root. The caller must exec afterwards, because only the calling thread
// is in the namespace.
func IsolateCgroups(c Config) error {
	runtime.LockOSThread()
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := h.join(c.Cgroup); err != nil {
			return err
		}
	}
	return os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWCGROUP))
}

// mountCgroups replaces the host's cgroup mounts with those of the machine.
func mountCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		// Unmounted first: the kernel does not mount the same file system twice on one mount point.
		if err := unix.Unmount(h.dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", h.dir, err)
		}
		if err := unix.Mount(h.fstype, h.dir, h.fstype, 0, h.options); err != nil {
			return fmt.Errorf("%s: %w", h.dir, err)
		}
		if h.fstype == "cgroup2" {
			// Controllers can only be enabled for the children of a cgroup without processes.
			if err := h.join("/init"); err != nil {
				return err
			}
		}
	}
	return nil
}

// hierarchies returns the mounted hierarchies.
func hierarchies() ([]hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	seen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, super := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(super) < 3 || !strings.HasPrefix(super[0], "cgroup") || seen[f[4]] {
			continue
		}
		seen[f[4]] = true
		h := hierarchy{dir: f[4], fstype: super[0]}
		if h.fstype == "cgroup" {
			h.options = kindOf(super[2])
		}
		found = append(found, h)
	}
	return found, nil
}

// kindOf returns the controllers and the name in the options of a mount.
func kindOf(options string) string {
	var kind []string
	named := false
	for o := range strings.SplitSeq(options, ",") {
		switch {
		case o == "rw" || o == "ro" || o == "xattr" || o == "noprefix" || o == "clone_children" ||
			strings.HasPrefix(o, "release_agent="):
		case strings.HasPrefix(o, "name="):
			named = true
			kind = append(kind, o)
		default:
			kind = append(kind, o)
		}
	}
	if named && len(kind) == 1 {
		kind = append(kind, "none")
	}
	return strings.Join(kind, ",")
}

// join creates a cgroup, and moves this process into it.
func (h hierarchy) join(group string) error {
	dir := h.dir
	for name := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		parent := dir
		dir = filepath.Join(dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		// A new cpuset cgroup of version 1 has no CPUs and memory nodes.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(parent, file))
			if err != nil || h.fstype != "cgroup" || len(bytes.TrimSpace(value)) == 0 {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}
