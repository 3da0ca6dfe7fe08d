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

// A hierarchy is a mounted cgroup tree of the host: the one of version 2, or one of version 1's many.
type hierarchy struct {
	dir     string // where it is mounted
	fstype  string
	options string // what names it among its kind
}

// IsolateCgroups moves this process into a cgroup of its own in every hierarchy and makes that the root of all that the
// machine sees. Then exec, as the namespace belongs to one thread alone.
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

// mountCgroups shows the machine its own cgroups in the place of the host's.
func mountCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		// Not over it: the kernel takes the same file system on the same place for a mistake.
		if err := unix.Unmount(h.dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", h.dir, err)
		}
		if err := unix.Mount(h.fstype, h.dir, h.fstype, 0, h.options); err != nil {
			return fmt.Errorf("%s: %w", h.dir, err)
		}
		if h.fstype == "cgroup2" {
			// Controllers can be handed down only by a group without processes.
			if err := h.join("/init"); err != nil {
				return err
			}
		}
	}
	return nil
}

// hierarchies reads them from the mounts of this process.
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

// kindOf keeps of a mount's options the controllers and the name.
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

// join makes a group and moves this process into it.
func (h hierarchy) join(group string) error {
	dir := h.dir
	for name := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		parent := dir
		dir = filepath.Join(dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		// A new group of version 1 has no processors and no memory to run on.
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
