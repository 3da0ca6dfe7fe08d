// Package agent_test runs the node agent's binary on simulated machines with real network
// namespaces.
package agent_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestMain(m *testing.M) { lab.Main(m) }

// A view is a way to start the agent: it determines what the agent sees of the machine.
type view struct {
	name   string
	noView bool
	flags  uintptr // of clone(2)
	setup  string  // shell command to run in the agent's namespaces before it
	args   []string
}

var views = []view{
	{name: "on the machine itself"},
	{
		name: "in a container, through /proc/1/root", flags: syscall.CLONE_NEWNS,
		setup: "mount -t tmpfs none /run/netns", args: []string{"--host-root=/proc/1/root"},
	},
	{
		name: "in a container without hostPID", noView: true, flags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		setup: "mount -t proc none /proc",
	},
	{
		name: "in a container without the machine's mounts", noView: true, flags: syscall.CLONE_NEWNS,
		setup: "mount -t tmpfs none /run/netns",
	},
}

// A daemon is a running agent.
type daemon struct {
	t   *testing.T
	cmd *exec.Cmd
	out *background.Log
}

// begin starts an agent on the node.
func begin(t *testing.T, node *lab.Node, v view, args ...string) *daemon {
	t.Helper()
	args = append(append([]string{"--no-kube", "--metrics-addr=", "--log-level=debug"}, v.args...), args...)
	script := "exec " + lab.Bin("leasehold-agent") + " " + strings.Join(args, " ")
	if v.setup != "" {
		script = v.setup + " && " + script
	}
	d := &daemon{t: t, cmd: exec.Command("sh", "-c", script), out: &background.Log{}}
	d.cmd.Env = append(os.Environ(), node.Environ()...)
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: v.flags}
	must.Succeed(t, d.cmd.Start(), "starting the agent")
	t.Cleanup(func() {
		if d.cmd.ProcessState == nil {
			d.cmd.Process.Kill()
			d.cmd.Wait()
		}
	})
	return d
}

// says waits until the agent's log contains text.
func (d *daemon) says(text string) {
	d.t.Helper()
	background.Eventually(d.t, func() string {
		if strings.Contains(d.out.String(), text) {
			return ""
		}
		return fmt.Sprintf("%q is not in the agent's log:\n%s", text, d.out)
	})
}

// end stops the agent with SIGTERM, as a kubelet does. It must exit with code 0.
func (d *daemon) end() {
	d.t.Helper()
	d.says(`msg="agent starting"`) // before that a signal kills it
	d.cmd.Process.Signal(syscall.SIGTERM)
	must.Succeed(d.t, d.cmd.Wait(), "the agent:", d.out)
}
