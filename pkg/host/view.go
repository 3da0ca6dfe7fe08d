package host

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// initialPID is the inode of the initial PID namespace of every Linux kernel (PROC_PID_INIT_INO,
// include/linux/proc_ns.h).
const initialPID = 0xEFFFFFFC

// NamespaceIDs returns the boot id, the PID namespace that /proc shows and the mount namespace that
// paths are resolved in, as one string. Two processes with the same string see the same processes,
// and find the same namespaces at the same paths. It is "" if one of the three cannot be read.
//
// The plugin records the string in the store. It runs where the runtime runs, so the agent can
// prove that it sees what the plugin sees.
func (h *Host) NamespaceIDs(boot string) string {
	pid, errPID := h.namespaceInode("self", "pid")
	mnt, errMnt := h.namespaceInode(h.mounts, "mnt")
	if errPID != nil || errMnt != nil || boot == "" {
		return ""
	}
	return fmt.Sprintf("%s pid:%d mnt:%d", boot, pid, mnt)
}

// ErrNotHost is returned if the view is not proven to be the host's.
var ErrNotHost = errors.New("not proven to be the host's view")

// ProveView proves that this process sees what the plugin sees, whose NamespaceIDs are recorded:
// the same boot, the same processes, and mounts in which the network namespaces of the node are
// found. The mounts are proven if they are the plugin's and those of process 1, or if the namespace
// of a bound lease is mounted in them. (A runtime may have mounts of its own, and Multus runs
// plugins in those of its daemon.)
//
// If nothing was recorded in this boot, only two PID namespaces are certainly the host's, with the
// mounts of process 1: the initial one, and that of the runtime which started this container
// (seesRuntime).
//
// bound yields the leases in state Bound; it may be nil. Errors wrap ErrNotHost.
func (h *Host) ProveView(recorded, boot string, bound iter.Seq[lease.Lease]) error {
	if boot == "" {
		_, err := h.readBootID()
		return fmt.Errorf("%w: %w", ErrNotHost, cmp.Or(err, errors.New("no boot id")))
	}
	if self, err := os.Readlink(filepath.Join(h.proc, "self")); err != nil || self != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("%w: %s does not show this process (self is %q); set hostPID", ErrNotHost, h.proc, self)
	}
	own := h.NamespaceIDs(boot)
	if own == "" {
		return fmt.Errorf("%w: failed to read the namespaces of process %s; CAP_SYS_PTRACE is needed",
			ErrNotHost, h.mounts)
	}
	errMounts := h.proveFirstMounts()
	if !IsOfBoot(recorded, boot) {
		if !h.isInitialPIDNamespace() && !h.seesRuntime() {
			return fmt.Errorf("%w: this is not the initial PID namespace, no process of the container runtime started "+
				"this one, and no plugin has recorded its namespaces in this boot", ErrNotHost)
		}
		return errMounts
	}
	ours, _, _ := strings.Cut(own, " mnt:")
	if theirs, _, _ := strings.Cut(recorded, " mnt:"); ours != theirs {
		return fmt.Errorf("%w: the plugin runs in %q, this is %q; hostPID and the host's root are needed",
			ErrNotHost, recorded, own)
	}
	// The inode alone proves nothing: a mount namespace created later may have reused it.
	if recorded == own && errMounts == nil {
		return nil
	}
	if err := h.proveMounts(recorded+own, boot, bound, errMounts == nil || recorded == own); err != nil {
		return fmt.Errorf("%w: the plugin runs in %q, this is %q, and %w", ErrNotHost, recorded, own, err)
	}
	return nil
}

// IsOfBoot reports whether NamespaceIDs were recorded in the boot.
func IsOfBoot(recorded, boot string) bool { return boot != "" && strings.HasPrefix(recorded, boot+" ") }

// kernelThreads is the pid of kthreadd in the initial PID namespace. Like process 1 it is in the
// initial namespace of every kind.
const kernelThreads = "2"

// isInitialPIDNamespace reports whether /proc shows the initial PID namespace.
func (h *Host) isInitialPIDNamespace() bool {
	pid, err := h.namespaceInode("self", "pid")
	return err == nil && pid == initialPID
}

// seesRuntime reports whether /proc shows the process of the container runtime that started the
// container of this process: an ancestor that runs in other mounts. The PID namespace is then the
// runtime's, as hostPID makes it. In a PID namespace of the container or of its pod the parent of
// the container's first process is not visible.
func (h *Host) seesRuntime() bool {
	own, err := h.namespaceInode("self", "mnt")
	for pid := "self"; err == nil; {
		if pid, err = h.parent(pid); pid == "0" {
			return false
		}
		if mnt, e := h.namespaceInode(pid, "mnt"); e != nil || mnt != own {
			return e == nil
		}
	}
	return false
}

// parent returns the parent of a process, "0" if it is not in the PID namespace that /proc shows.
func (h *Host) parent(pid string) (string, error) {
	stat, err := os.ReadFile(filepath.Join(h.proc, pid, "stat"))
	if err != nil {
		return "", err
	}
	// The name of the program comes before, in parentheses, and may contain any character.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return "", fmt.Errorf("the parent of process %s is not known", pid)
	}
	return fields[1], nil
}

// proveFirstMounts proves that paths are resolved in the mounts of process 1.
func (h *Host) proveFirstMounts() error {
	first, err := h.namespaceInode("1", "mnt")
	if err != nil && h.isInitialPIDNamespace() {
		if kernel, e := h.namespaceInode(kernelThreads, "mnt"); e == nil {
			first, err = kernel, nil // process 1 may be confined
		}
	}
	if err != nil {
		return fmt.Errorf("%w: failed to read the mounts of process 1: %w", ErrNotHost, err)
	}
	if own, err := h.namespaceInode(h.mounts, "mnt"); err != nil || own != first {
		return fmt.Errorf("%w: paths are not resolved in the mounts of process 1", ErrNotHost)
	}
	return nil
}

// proveMounts returns nil if the network namespace of a bound lease is mounted here at its path.
// Such a mount is proof only if later mounts appear here too, that is, if the caller knows that
// these mounts are not a copy (noCopy), or if the mount is propagated. A proof is remembered for
// the same ids, which are the recorded NamespaceIDs and those of this process.
func (h *Host) proveMounts(ids, boot string, bound iter.Seq[lease.Lease], noCopy bool) error {
	if _, known := h.proven.Load(ids); known {
		return nil
	}
	mounts, err := h.netnsMounts()
	if err != nil {
		return err
	}
	mounted := map[uint64]bool{}
	for _, m := range mounts {
		if noCopy || m.propagates {
			mounted[m.ino] = true
		}
	}
	if bound == nil {
		bound = func(func(lease.Lease) bool) {}
	}
	for l := range bound {
		life, _ := h.QuickState(l.Holder, boot)
		if life == lease.Alive && l.Holder.BootID == boot && mounted[l.Holder.Netns.Ino] {
			h.proven.Store(ids, true)
			return nil
		}
	}
	return errors.New("no network namespace of a bound lease is mounted at its path here; the host's root is needed")
}

// namespaceInode returns the inode of a process's namespace of a kind, such as "mnt".
func (h *Host) namespaceInode(pid, kind string) (uint64, error) {
	link, err := os.Readlink(filepath.Join(h.proc, pid, "ns", kind))
	if err != nil {
		return 0, err
	}
	ino, ok := linkInode(link, kind)
	if !ok {
		return 0, fmt.Errorf("%q is not a %s namespace", link, kind)
	}
	return ino, nil
}

// linkInode parses a link such as "net:[4026531840]".
func linkInode(link, kind string) (uint64, bool) {
	digits, ok := strings.CutPrefix(link, kind+":[")
	digits, closed := strings.CutSuffix(digits, "]")
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, ok && closed && err == nil
}
