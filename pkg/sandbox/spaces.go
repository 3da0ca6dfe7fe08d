package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// initialPID is the inode of the first process namespace of every Linux kernel
// (PROC_PID_INIT_INO, include/linux/proc_ns.h).
const initialPID = 0xEFFFFFFC

// Spaces says where this process lives, in one word: the boot (its id), the process
// namespace that its /proc shows, and the mounts that its paths lead through.
// Two processes with the same word see the same processes, and find the same
// namespaces at the same paths. "" where it cannot be told.
//
// The plugin leaves its word in the store (it runs where the runtime runs), so
// that the agent can prove that it sees what the plugin saw.
func (h *Host) Spaces(boot string) string {
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
// its word. Without a word of this boot, only the first process namespace and
// the mounts of its first process are the host's for certain.
func (h *Host) ProveView(word, boot string) error {
	if boot == "" {
		return fmt.Errorf("%w: the boot id cannot be read from %s", ErrNotHost, h.bootIDFile)
	}
	if self, err := os.Readlink(filepath.Join(h.proc, "self")); err != nil || self != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("%w: %s shows other processes than this one's (self is %q): is hostPID set?", ErrNotHost, h.proc, self)
	}
	own := h.Spaces(boot)
	if own == "" {
		return fmt.Errorf("%w: the namespaces of process %s cannot be read; CAP_SYS_PTRACE is needed", ErrNotHost, h.mounts)
	}
	if strings.HasPrefix(word, boot+" ") {
		if word != own {
			return fmt.Errorf("%w: the plugin runs in %q, this is %q: hostPID and the host's own root are needed", ErrNotHost, word, own)
		}
		return nil
	}
	return h.proveFirst()
}

// proveFirst proves that these are the first namespaces of the machine.
func (h *Host) proveFirst() error {
	pid, err := h.space("self", "pid")
	if err != nil || pid != initialPID {
		return fmt.Errorf("%w: this is not the machine's first process namespace, and the plugin has not said in this boot where it runs", ErrNotHost)
	}
	first, err := h.space("1", "mnt")
	if own, e := h.space(h.mounts, "mnt"); err != nil || e != nil || own != first {
		return fmt.Errorf("%w: paths lead through other mounts than those of process 1", ErrNotHost)
	}
	return nil
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
