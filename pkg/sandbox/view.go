package sandbox

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

// initialPID is the inode of the first process namespace of every Linux kernel
// (PROC_PID_INIT_INO, include/linux/proc_ns.h).
const initialPID = 0xEFFFFFFC

// NamespaceIDs says where this process lives, in one word: the boot (its id), the process
// namespace that its /proc shows, and the mounts that its paths lead through.
// Two processes with the same word see the same processes, and find the same
// namespaces at the same paths. "" where it cannot be told.
//
// The plugin leaves its word in the store (it runs where the runtime runs), so
// that the agent can prove that it sees what the plugin saw.
func (h *Host) NamespaceIDs(boot string) string {
	pid, errPID := h.space("self", "pid")
	mnt, errMnt := h.space(h.mounts, "mnt")
	if errPID != nil || errMnt != nil || boot == "" {
		return ""
	}
	return fmt.Sprintf("%s pid:%d mnt:%d", boot, pid, mnt)
}

// ErrNotHost is returned where the view is not proven to be the host's.
var ErrNotHost = errors.New("this is not proven to be the host's view")

// ProveView proves that what is seen here is what the plugin sees, which left
// its word: the same boot, the same processes, and mounts through which the
// namespaces of the node are found. Those are the plugin's own where process 1
// has them too, or such that the namespace of a bound lease is mounted there. (A
// runtime may have mounts of its own, and Multus calls plugins in those of its
// daemon.) Without a word of this boot, only the first process namespace and the
// mounts of its first process are the host's for certain.
//
// Bound are the leases that are Bound, nil where there are none. Errors wrap
// ErrNotHost.
func (h *Host) ProveView(word, boot string, bound iter.Seq[lease.Lease]) error {
	if boot == "" {
		_, err := h.readBootID()
		return fmt.Errorf("%w: %w", ErrNotHost, cmp.Or(err, errors.New("the boot id could not be read")))
	}
	if self, err := os.Readlink(filepath.Join(h.proc, "self")); err != nil || self != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("%w: %s shows other processes than this one's (self is %q): is hostPID set?",
			ErrNotHost, h.proc, self)
	}
	own := h.NamespaceIDs(boot)
	if own == "" {
		return fmt.Errorf("%w: the namespaces of process %s cannot be read; CAP_SYS_PTRACE is needed", ErrNotHost, h.mounts)
	}
	errFirst := h.proveFirstMounts()
	if !IsOfBoot(word, boot) {
		if !h.isFirst() {
			return fmt.Errorf("%w: this is not the machine's first process namespace, "+
				"and the plugin has not said in this boot where it runs", ErrNotHost)
		}
		return errFirst
	}
	ours, _, _ := strings.Cut(own, " mnt:")
	if theirs, _, _ := strings.Cut(word, " mnt:"); ours != theirs {
		return fmt.Errorf("%w: the plugin runs in %q, this is %q: hostPID and the host's own root are needed",
			ErrNotHost, word, own)
	}
	// The number alone may be that of mounts that came after the plugin's.
	if word == own && errFirst == nil {
		return nil
	}
	if err := h.proveMounts(word+own, boot, bound, errFirst == nil || word == own); err != nil {
		return fmt.Errorf("%w: the plugin runs in %q, this is %q, and %w", ErrNotHost, word, own, err)
	}
	return nil
}

// IsOfBoot reports whether the plugin left the word in the boot.
func IsOfBoot(word, boot string) bool { return boot != "" && strings.HasPrefix(word, boot+" ") }

// kernelThreads is the process that makes the kernel's own threads, in the first
// process namespace. It is in the first namespace of every kind, as process 1 is.
const kernelThreads = "2"

// isFirst reports whether /proc shows the first process namespace of the machine.
func (h *Host) isFirst() bool {
	pid, err := h.space("self", "pid")
	return err == nil && pid == initialPID
}

// proveFirstMounts proves that paths lead through the mounts of process 1.
func (h *Host) proveFirstMounts() error {
	first, err := h.space("1", "mnt")
	if err != nil && h.isFirst() {
		if kernel, e := h.space(kernelThreads, "mnt"); e == nil {
			first, err = kernel, nil // process 1 may be confined
		}
	}
	if err != nil {
		return fmt.Errorf("%w: the mounts of process 1 cannot be read: %w", ErrNotHost, err)
	}
	if own, err := h.space(h.mounts, "mnt"); err != nil || own != first {
		return fmt.Errorf("%w: paths lead through other mounts than those of process 1", ErrNotHost)
	}
	return nil
}

// proveMounts finds a bound lease whose network namespace is mounted here, at its
// path. That is enough where later mounts appear here as well: where the caller
// knows that these are no copy, or the mount is propagated. It stays proven for
// the same pair of words.
func (h *Host) proveMounts(pair, boot string, bound iter.Seq[lease.Lease], noCopy bool) error {
	if _, known := h.proven.Load(pair); known {
		return nil
	}
	mountinfo, err := h.mountinfo()
	if err != nil {
		return err
	}
	mounted := map[uint64]bool{}
	for line := range bytes.Lines(mountinfo) {
		if m, ok := netnsMount(string(line)); ok && (noCopy || m.propagates) {
			mounted[m.ino] = true
		}
	}
	if bound == nil {
		bound = func(func(lease.Lease) bool) {}
	}
	for l := range bound {
		if l.Holder.BootID == boot && mounted[l.Holder.Netns.Ino] && h.QuickState(l.Holder, boot) == lease.Alive {
			h.proven.Store(pair, true)
			return nil
		}
	}
	return errors.New("no network namespace of a bound lease is mounted at its path here: the host's own root is needed")
}

// space returns the inode of a process's namespace of a kind.
func (h *Host) space(pid, kind string) (uint64, error) {
	link, err := os.Readlink(filepath.Join(h.proc, pid, "ns", kind))
	if err != nil {
		return 0, err
	}
	ino, ok := spaceInode(link, kind)
	if !ok {
		return 0, fmt.Errorf("%q is no %s namespace", link, kind)
	}
	return ino, nil
}

// spaceInode reads "net:[4026531840]".
func spaceInode(link, kind string) (uint64, bool) {
	digits, ok := strings.CutPrefix(link, kind+":[")
	digits, closed := strings.CutSuffix(digits, "]")
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, ok && closed && err == nil
}
