// Package lab acts as a container runtime on simulated machines, for tests, the demo and
// benchmarks.
//
// [Main] runs the calling program in namespaces of its own: network, mount, PID and, without root,
// user. A [Node] is a simulated machine there, with its bridges, state and boot id. It runs real
// CNI plugins through libcni, as containerd does. A [Sandbox] is a pod sandbox: a container id and
// a network namespace, bind-mounted at a path with a random name.
//
// Nothing outlives the program, even if it is killed: the kernel removes the namespaces with all
// links, mounts and processes in them, and [Main] removes the files.
package lab

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// insideVar is set for the process inside the namespaces. Its value is the directory for temporary
// files.
const insideVar = "LEASEHOLD_LAB_DIR"

// The main thread must not change its network namespace, because /proc/PID/ns/net shows that of the
// main thread.
func init() { runtime.LockOSThread() }

// Main is called by TestMain. It builds the binaries, starts this program again in new namespaces,
// and runs the tests there.
func Main(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(harmVar) != "" {
		fmt.Fprintln(os.Stderr, "lab:", becomeHarmed())
		return 1
	}
	if os.Getenv(insideVar) != "" {
		if err := SetUp(); err != nil {
			fmt.Fprintln(os.Stderr, "lab:", err)
			return 1
		}
		return m.Run()
	}
	code, err := runInNamespaces()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	return code
}

// Build builds the programs that Bin returns.
func Build() error {
	for _, script := range []string{"scripts/build", "scripts/build-lab"} {
		build := exec.Command(filepath.Join(Root(), script))
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("%s: %w", script, err)
		}
	}
	return nil
}

// Isolated returns a command that starts this program again in new namespaces, where it has to call
// SetUp. The program ends with the thread that starts it.
func Isolated(args ...string) *exec.Cmd {
	self := exec.Command("/proc/self/exe", args...)
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		self.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		self.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		self.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return self
}

func runInNamespaces() (int, error) {
	if err := Build(); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "leasehold-lab-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)

	self := Isolated(os.Args[1:]...)
	self.Env = append(os.Environ(), insideVar+"="+dir, "TMPDIR="+dir)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	runtime.LockOSThread() // see Isolated
	if err := self.Start(); err != nil {
		return 0, fmt.Errorf("creating namespaces: %w", err)
	}
	go func() {
		for s := range signals {
			self.Process.Signal(s)
			time.AfterFunc(5*time.Second, func() { self.Process.Kill() })
		}
	}()
	self.Wait()
	return self.ProcessState.ExitCode(), nil
}

// SetUp mounts /proc and empty directories in the new namespaces, as on a machine that has just
// booted.
func SetUp() error {
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib", "/etc/cni"} {
		if !exists(dir) {
			continue // /etc/cni, on a machine without CNI
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("mounting a tmpfs at %s: %w", dir, err)
		}
	}
	return withoutDAD()
}

// Root returns the directory of this repository.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic("lab: " + err.Error())
	}
	for !exists(filepath.Join(dir, "plugins/ipam")) || !exists(filepath.Join(dir, "scripts/tools/flannel/go.mod")) {
		if dir == "/" {
			panic("lab: run outside the repository")
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// Bin returns the path of a program of the project (leasehold, leasectl) or of an upstream plugin
// (bridge, host-local). It panics if there is none. Those of the project are in LEASEHOLD_TEST_BIN,
// or in bin/.
func Bin(name string) string {
	for _, dir := range []string{os.Getenv("LEASEHOLD_TEST_BIN"), filepath.Join(Root(), "bin"),
		filepath.Join(Root(), ".cache/cni-bin")} {
		if path := filepath.Join(dir, name); dir != "" && exists(path) {
			return path
		}
	}
	panic("lab: no program " + name)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
