package host

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEnterHostRootErrors(t *testing.T) {
	host := New("/proc", DefaultBootIDFile)
	if got, err := EnterHostRoot("/", host); got != host || err != nil {
		t.Errorf("%v", err)
	}
	for root, text := range map[string]string{
		"":                "/ or /proc/<pid>/root",
		"/host":           "/ or /proc/<pid>/root",
		"/proc/self/root": "/ or /proc/<pid>/root",
		"/proc/../root":   "/ or /proc/<pid>/root",
		"/proc/0/root":    "/ or /proc/<pid>/root",
		"/proc/" + strings.Repeat("9", 10) + "/root": "hostPID",
	} {
		if _, err := EnterHostRoot(root, host); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", root, err)
		}
	}
}

func TestOpenDirPath(t *testing.T) {
	dir := t.TempDir()
	path, err := OpenDirPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("later"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path + "/token"); err != nil || string(b) != "later" {
		t.Errorf("%q, %v", b, err)
	}
	gone := filepath.Join(dir, "gone")
	if _, err := OpenDirPath(gone); err == nil || err.Error() != "open "+gone+": no such file or directory" {
		t.Errorf("a missing directory: %v", err)
	}
}

const (
	hostEnv      = "LEASEHOLD_TEST_HOST"
	hiddenDirEnv = "LEASEHOLD_TEST_HIDDEN"
)

// TestEnterHostRoot enters the root of this process from a process with mounts of its own, which
// hide a file.
func TestEnterHostRoot(t *testing.T) {
	if pid := os.Getenv(hostEnv); pid != "" {
		enterFromContainer(t, pid, os.Getenv(hiddenDirEnv))
		return
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), hostEnv+"="+strconv.Itoa(os.Getpid()), hiddenDirEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func enterFromContainer(t *testing.T, pid, dir string) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Chdir(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if _, err := os.ReadFile(file); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the container sees the host's file: %v", err)
	}
	host := New("/proc", "/proc/sys/kernel/random/boot_id")
	if err := withoutChroot(t, func() error {
		_, err := EnterHostRoot("/proc/"+pid+"/root", host)
		return err
	}); !errors.Is(err, syscall.EPERM) {
		t.Errorf("without CAP_SYS_CHROOT: %v", err)
	}
	got, err := EnterHostRoot("/proc/"+pid+"/root", host)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, host.Through(pid)) {
		t.Errorf("the host is seen through %+v", got)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "of the host" {
		t.Errorf("after it, the file of the host is %q: %v", b, err)
	}
	if wd, err := os.Readlink("/proc/self/cwd"); err != nil || wd != "/" {
		t.Errorf("after it, the working directory is %s: %v", wd, err)
	}
}

// withoutChroot calls f without CAP_SYS_CHROOT.
func withoutChroot(t *testing.T, f func() error) error {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData
	if err := unix.Capget(&header, &before[0]); err != nil {
		t.Fatal(err)
	}
	without := before
	without[0].Effective &^= 1 << unix.CAP_SYS_CHROOT
	if err := unix.Capset(&header, &without[0]); err != nil {
		t.Fatal(err)
	}
	err := f()
	if err := unix.Capset(&header, &before[0]); err != nil {
		t.Fatal(err)
	}
	return err
}
