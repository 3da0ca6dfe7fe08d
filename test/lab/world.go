// Package lab plays a container runtime on machines of its own, for the tests, the demo and the benchmarks.
//
// [Run] puts the calling program into a world apart: its own network, mount, process and (where root is missing) user
// namespace. In that world a [Node] is one machine with its bridges, state and boot id. It runs real CNI plugins through
// libcni, as containerd does. A [Sandbox] is one life of a pod: a container id and a network namespace, bind-mounted
// under a random name.
//
// Nothing outlives the program, however it ends: the kernel takes the namespaces down, with every link, mount and process
// in them, and [Run] removes the files.
package lab

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// insideVar is set for the program that runs in the world apart; its value is the folder for temporary files.
const insideVar = "LEASEHOLD_LAB_DIR"

// The first thread is what /proc/PID/ns/net speaks of, so it must never go into another network namespace.
func init() { runtime.LockOSThread() }

// Main is what a TestMain calls.
func Main(m interface{ Run() int }) { os.Exit(Run(m.Run)) }

// Run builds the binaries and calls f in a world apart, which is this same program, started again. It returns what f
// returned, or 1 when the world could not be made.
func Run(f func() int) int {
	if os.Getenv(harmVar) != "" {
		fmt.Fprintln(os.Stderr, "lab:", becomeHarmed())
		return 1
	}
	if os.Getenv(insideVar) != "" {
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "lab:", err)
			return 1
		}
		return f()
	}
	code, err := runApart()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	return code
}

func runApart() (int, error) {
	for _, script := range []string{"scripts/build", "scripts/build-lab"} {
		build := exec.Command(filepath.Join(Root(), script))
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return 0, fmt.Errorf("%s: %w", script, err)
		}
	}
	dir, err := os.MkdirTemp("", "leasehold-lab-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)

	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), insideVar+"="+dir, "TMPDIR="+dir)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		self.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		self.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		self.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	// The death signal comes when the thread ends that started the child.
	runtime.LockOSThread()
	if err := self.Start(); err != nil {
		return 0, fmt.Errorf("no namespaces of our own: %w", err)
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

// furnish makes the new namespaces a machine that has just been switched on.
func furnish() error {
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs over %s: %w", dir, err)
		}
	}
	return nil
}

// Root returns the folder of this repository.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic("lab: " + err.Error())
	}
	for !exists(filepath.Join(dir, "plugins/ipam")) || !exists(filepath.Join(dir, "tools/flannel/go.mod")) {
		if dir == "/" {
			panic("lab: run outside the repository")
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// Bin returns the path of a program of the product (leasehold, leasectl) or of an upstream plugin (bridge, host-local). The
// product's are in bin/, or where LEASEHOLD_TEST_BIN says.
func Bin(name string) string {
	for _, dir := range []string{os.Getenv("LEASEHOLD_TEST_BIN"), filepath.Join(Root(), "bin"), filepath.Join(Root(), ".cache/cni-bin")} {
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
