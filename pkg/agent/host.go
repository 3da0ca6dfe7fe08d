package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"

	"github.com/leasehold-cni/leasehold/pkg/sandbox"
)

var rootOf = regexp.MustCompile(`^/proc/([1-9][0-9]{0,9})/root$`)

// Enter moves this process for good into the host's file system, and returns
// the host as it is seen from there. root is "/" for a process that is in it,
// or /proc/<pid>/root of one that is.
//
// It changes the root directory instead of putting a prefix before every path.
// The store names paths as the plugin knows them, and many lead through absolute
// links (/var/run/netns, with /var/run -> /run): behind a prefix such a link
// leads back into this container, where nothing is, and a living sandbox would
// look dead.
func Enter(root string, host *sandbox.Host) (*sandbox.Host, error) {
	if root == "/" {
		return host, nil
	}
	m := rootOf.FindStringSubmatch(root)
	if m == nil {
		return nil, fmt.Errorf("--host-root %q: it is / or /proc/<pid>/root", root)
	}
	pid := m[1]
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, err
	}
	others, err := os.Readlink(filepath.Join("/proc", pid, "ns/mnt"))
	if err != nil {
		return nil, fmt.Errorf("--host-root %s: process %s cannot be looked at (hostPID, CAP_SYS_PTRACE and no AppArmor profile are needed): %w", root, pid, err)
	}
	if own == others {
		return nil, fmt.Errorf("--host-root %s: process %s is in this very container, not on the host: hostPID is not set (on the host itself it is --host-root=/)", root, pid)
	}
	if err := errors.Join(syscall.Chroot(root), os.Chdir("/")); err != nil {
		return nil, fmt.Errorf("--host-root %s (CAP_SYS_CHROOT and CAP_SYS_PTRACE are needed): %w", root, err)
	}
	return host.Through(pid), nil
}

// Keep returns a path that leads to the directory also after Enter: for the
// token of the service account, which is read again and again.
func Keep(dir string) (string, error) {
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}
