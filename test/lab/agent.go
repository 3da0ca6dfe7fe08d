package lab

import (
	"os"
	"os/exec"
	"time"
)

// Agent runs leasehold-agent on the node, without a cluster, until the test ends or stop is called.
func (n *Node) Agent(args ...string) (pid int, stop func()) {
	n.t.Helper()
	cmd := exec.Command(Bin("leasehold-agent"), append([]string{"--no-kube", "--metrics-addr", ""}, args...)...)
	cmd.Env = append(os.Environ(), n.Environ()...)
	if err := n.Do(cmd.Start); err != nil {
		n.t.Fatalf("agent: %v", err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			cmd.Process.Kill()
			<-ended
		}
	}
	n.t.Cleanup(stop)
	return cmd.Process.Pid, stop
}
