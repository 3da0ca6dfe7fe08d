package lab

import (
	"os"
	"os/exec"

	"github.com/leasehold-cni/leasehold/test/must"
)

// Agent runs leasehold-agent on the node, without a cluster, until the test ends.
func (n *Node) Agent(args ...string) (pid int) {
	n.t.Helper()
	cmd := exec.Command(Bin("leasehold-agent"), append([]string{"--no-kube", "--metrics-addr", ""}, args...)...)
	cmd.Env = append(os.Environ(), n.Environ()...)
	must.Succeed(n.t, n.Do(cmd.Start), "agent")
	n.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd.Process.Pid
}
