package host

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
)

// rootOf is compiled at the first use, which is never in the plugin.
var rootOf = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/proc/([1-9][0-9]{0,9})/root$`) })

// EnterHostRoot changes the root directory of this process to the host's, permanently, and returns
// the Host for that root. root is "/" if this process runs on the host, otherwise /proc/<pid>/root
// of a process that does. It must be called before other goroutines use paths.
//
// It uses chroot(2) instead of putting a prefix before every path. The store contains paths as the
// plugin sees them, and many lead through absolute symbolic links (/var/run/netns, where /var/run
// is a link to /run). With a prefix such a link would lead into this container's file system, where
// the namespace does not exist, and a living sandbox would seem dead.
func EnterHostRoot(root string, host *Host) (*Host, error) {
	if root == "/" {
		return host, nil
	}
	m := rootOf().FindStringSubmatch(root)
	if m == nil {
		return nil, fmt.Errorf("--host-root %q is invalid; want / or /proc/<pid>/root", root)
	}
	pid := m[1]
	own, errOwn := os.Readlink("/proc/self/ns/mnt")
	others, err := os.Readlink(filepath.Join("/proc", pid, "ns/mnt"))
	if err = cmp.Or(err, errOwn); err != nil {
		return nil, fmt.Errorf("--host-root %s: reading the mount namespaces of process %s and of this one: %w; "+
			"hostPID, CAP_SYS_PTRACE and no AppArmor profile are needed", root, pid, err)
	}
	if own == others {
		return nil, fmt.Errorf("--host-root %s: process %s runs in this container, not on the host; "+
			"set hostPID, or --host-root=/ on the host itself", root, pid)
	}
	if err := errors.Join(syscall.Chroot(root), os.Chdir("/")); err != nil {
		return nil, fmt.Errorf("--host-root %s: %w; CAP_SYS_CHROOT and CAP_SYS_PTRACE are needed", root, err)
	}
	return host.Through(pid), nil
}

// OpenDirPath opens a directory, and returns a path to it that stays valid after EnterHostRoot. It
// is used for the service account's token, which is read again when it is renewed. The directory
// stays open until the process ends.
func OpenDirPath(dir string) (string, error) {
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}
