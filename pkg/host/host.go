package host

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// DefaultBootIDFile is the file from which Linux shows the boot id.
const DefaultBootIDFile = "/proc/sys/kernel/random/boot_id"

// Environment variables, for tests.
const (
	fakeBootID  = "LEASEHOLD_BOOT_ID_FILE"
	clockOffset = "LEASEHOLD_CLOCK_OFFSET" // Go duration, added to both clocks
)

// Host reads the state of the node from its /proc and its root file system.
type Host struct {
	proc       string
	bootIDFile string
	mounts     string // the process whose mounts paths are resolved in: a pid, or "self"

	proven *sync.Map     // see proveMounts
	boot   *atomic.Value // the boot id, once it was read
}

// New returns a Host that reads the /proc at the path proc and the boot id in bootIDFile. It
// resolves paths in the mounts of this process.
func New(proc, bootIDFile string) *Host {
	return &Host{proc: proc, bootIDFile: bootIDFile, mounts: "self", proven: &sync.Map{}, boot: &atomic.Value{}}
}

// FromEnv returns the Host of a program, which tests change by environment variables, and its
// clock. Only main functions call it. The error names a variable that is invalid.
func FromEnv(getenv func(string) string) (h *Host, clock func() lease.Instant, err error) {
	var offset time.Duration
	if v := getenv(clockOffset); v != "" {
		if offset, err = time.ParseDuration(v); err != nil {
			return nil, nil, fmt.Errorf("%s %q is invalid; want a duration such as \"90s\" or \"-2h\"", clockOffset, v)
		}
	}
	h = New("/proc", cmp.Or(getenv(fakeBootID), DefaultBootIDFile))
	return h, func() lease.Instant {
		var boot unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
			panic("CLOCK_BOOTTIME: " + err.Error()) // Linux has had it since 2.6.39
		}
		return lease.Instant{
			Wall: time.Now().Add(offset).UTC().Round(0),
			Boot: time.Duration(boot.Nano()) + offset, BootID: h.BootID(),
		}
	}, nil
}

// Through returns the Host for this process after it has changed its root to that of process pid,
// so that paths are resolved in the mounts of that process.
func (h *Host) Through(pid string) *Host {
	moved := *h
	moved.mounts = pid
	return &moved
}

// BootID returns the id of this boot, or "" if it cannot be read. Then no holder can be proven dead
// by the boot in which it was bound.
func (h *Host) BootID() string {
	id, _ := h.readBootID()
	return id
}

func (h *Host) readBootID() (string, error) {
	if id, known := h.boot.Load().(string); known {
		return id, nil
	}
	b, err := os.ReadFile(h.bootIDFile)
	id := strings.TrimSpace(string(b))
	if err == nil && id == "" {
		err = fmt.Errorf("%s is empty", h.bootIDFile)
	}
	if err != nil {
		return "", fmt.Errorf("failed to read the boot id: %w", err)
	}
	h.boot.Store(id)
	return id, nil
}

// ErrNotNetns is returned for a path at which there is no network namespace.
var ErrNotNetns = errors.New("no network namespace")

// Netns returns the network namespace that is mounted at the path, or that a /proc/PID/ns/net path
// leads to. An error other than ErrNotNetns means that it is not known whether there is one.
func (h *Host) Netns(path string) (lease.Netns, error) {
	n := lease.Netns{Path: path}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if isNothing(err) || errors.Is(err, syscall.ENXIO) {
		return n, fmt.Errorf("%w at %q: %w", ErrNotNetns, path, err)
	}
	var st unix.Stat_t
	if err == nil {
		defer f.Close()
		err = unix.Fstat(int(f.Fd()), &st)
	}
	if err != nil {
		return n, fmt.Errorf("failed to read %s: %w", path, err)
	}
	// For a file that is not a namespace the request fails, and kind is negative.
	if kind, _ := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); kind != unix.CLONE_NEWNET {
		return n, fmt.Errorf("%w at %q: the file is of another kind", ErrNotNetns, path)
	}
	n.Dev, n.Ino = uint64(st.Dev), st.Ino
	return n, nil
}

// QuickState returns the state of a holder as far as one stat(2) shows it: Dead if it was bound in
// another boot, Alive if its path still leads to its namespace, and otherwise Unknown. Without an
// error the path then leads to nothing or to another file, and a process may keep the namespace
// alive. boot is the id of this boot, or "".
func (h *Host) QuickState(holder lease.Holder, boot string) (lease.Liveness, error) {
	if holder.BootID != "" && boot != "" && holder.BootID != boot {
		return lease.Dead, nil
	}
	if holder.Netns.Ino == 0 {
		return lease.Unknown, errors.New("its network namespace is not known")
	}
	var st unix.Stat_t
	switch err := unix.Stat(holder.Netns.Path, &st); {
	case err == nil && st.Ino == holder.Netns.Ino && uint64(st.Dev) == holder.Netns.Dev:
		return lease.Alive, nil
	case err != nil && !isNothing(err):
		return lease.Unknown, &os.PathError{Op: "stat", Path: holder.Netns.Path, Err: err}
	}
	return lease.Unknown, nil
}

// isNothing reports whether an error proves that there is nothing at a path.
func isNothing(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESRCH)
}

// ProcessNetns returns the inodes of the network namespaces of all processes. After an error some
// may be missing. It takes microseconds for each process, so that callers use it only to prove a
// death. Process 1 always exists, so a list without it is incomplete. Its own namespace is the
// host's and need not be readable: a security module may forbid it.
func (h *Host) ProcessNetns() (map[uint64]bool, error) {
	inodes, first := map[uint64]bool{}, false
	var unread error
	err := h.eachProcess(func(pid string) {
		first = first || pid == "1"
		ino, err := h.namespaceInode(pid, "net")
		switch {
		case err == nil:
			inodes[ino] = true
		case !isNothing(err) && pid != "1": // else it has ended
			unread = cmp.Or(unread, err)
		}
	})
	if err = cmp.Or(err, unread); err == nil && !first {
		err = fmt.Errorf("process 1 is not in %s", h.proc)
	}
	return inodes, err
}

// eachProcess calls f for each process that /proc shows. If it returns an error, some are missing.
func (h *Host) eachProcess(f func(pid string)) error {
	dir, err := os.Open(h.proc)
	if err != nil {
		return fmt.Errorf("failed to list the processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if '1' <= name[0] && name[0] <= '9' {
			f(name)
		}
	}
	return err
}

// MountedNetns returns the inodes of the network namespaces that are mounted at any path, also at
// paths that are in no lease. The agent counts them as in use, like those of processes. An ADD must
// not: the namespaces of new pods are mounted and may have reused the inodes of deleted namespaces,
// so that dead holders would seem alive.
func (h *Host) MountedNetns() (map[uint64]bool, error) {
	inodes := map[uint64]bool{}
	mounts, err := h.netnsMounts()
	for _, m := range mounts {
		inodes[m.ino] = true
	}
	return inodes, err
}
