package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// Machine returns a machine, which may be off.
func (c *Cluster) Machine(name string) machine.Machine { return machine.Machine{PID: c.PID(name)} }

// PID returns the pid of a machine's pid 1 on the host, 0 if the machine is off.
func (c *Cluster) PID(name string) int {
	p, ok := c.Machines[name]
	if !ok || !p.alive() {
		return 0
	}
	return p.PID
}

// Root returns the path of a machine's file system on the host. Absolute symbolic links in it, such
// as /var/run, are resolved on the host.
func (c *Cluster) Root(name string) string { return fmt.Sprintf("/proc/%d/root", c.PID(name)) }

// Log returns the path of a service's log file.
func (c *Cluster) Log(name, service string) string {
	return c.path("run/logs/" + name + "-" + service + ".log")
}

// powerOn boots a machine that is off, with its disk and a new boot id. It is one sequence of
// steps.
func (c *Cluster) powerOn(ctx context.Context, name string, addr netip.Prefix) error {
	disk, script := c.path("run/disks/"+name), c.path("run/machine.sh")
	if err := os.MkdirAll(c.path("run/logs"), 0o755); err != nil {
		return err
	}
	if err := writeFile(disk+".boot_id", []byte(string(uuid.NewUUID())+"\n")); err != nil {
		return err
	}
	if err := writeFile(script, machine.Script); err != nil {
		return err
	}
	log, err := os.OpenFile(c.Log(name, "machine"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("bash", script, name, disk, disk+".boot_id", c.cgroup(name))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait() // so that it does not become a zombie
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("machine %s exited at once, see %s", name, log.Name())
	}
	c.Machines[name] = Process{cmd.Process.Pid, start}
	if err := c.save(); err != nil {
		return err
	}
	if err := c.attach(ctx, name, cmd.Process.Pid, addr); err != nil {
		return fmt.Errorf("network of %s: %w", name, err)
	}
	return machine.Poll(ctx, 5*time.Minute, func() error {
		if c.PID(name) == 0 {
			return fmt.Errorf("machine %s has exited, see %s", name, log.Name())
		}
		if !c.Machine(name).Booted() {
			return fmt.Errorf("machine %s has not booted, see %s", name, log.Name())
		}
		return nil
	})
}

// powerOff kills all processes of a machine, as a power failure does.
func (c *Cluster) powerOff(ctx context.Context, name string) error {
	p, ok := c.Machines[name]
	if !ok {
		return nil
	}
	if p.alive() {
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
			return err
		}
	}
	err := machine.Poll(ctx, 5*time.Minute, func() error {
		if p.alive() {
			return fmt.Errorf("machine %s (pid %d) still runs", name, p.PID)
		}
		return nil
	})
	if err != nil {
		return err
	}
	delete(c.Machines, name)
	if err := detach(ctx, c.port(name)); err != nil {
		return err
	}
	// Unlike at a real reboot the cgroups would stay, and the kubelet would read them at its start.
	err = machine.Poll(ctx, 10*time.Second, func() error { return removeCgroups(ctx, c.cgroup(name)) })
	if err != nil {
		return err
	}
	return c.save()
}

// alive reports whether the process runs and is not a zombie.
func (p Process) alive() bool {
	start, err := startTime(p.PID)
	return err == nil && start == p.Start
}

// startTime returns when a process was started, in clock ticks since the host's boot.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, which may contain any character.
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(f) < 20 || f[0] == "Z" {
		return 0, fs.ErrNotExist
	}
	return strconv.ParseUint(f[19], 10, 64)
}
