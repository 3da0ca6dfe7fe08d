package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Collect saves what may explain a failed scenario, which began since a moment, in a directory.
func (c *Cluster) Collect(ctx context.Context, dir, namespace string, since time.Time) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Repo, "test/e2e/cluster/collect.sh"), dir, namespace,
		since.Format(time.RFC3339Nano), c.path("run"), c.Leasectl())
	for _, name := range c.NodeNames() {
		if pid := c.PID(name); pid != 0 {
			cmd.Args = append(cmd.Args, fmt.Sprint(name, "=", pid))
		}
	}
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(),
		"PATH="+filepath.Dir(c.Kubectl())+":"+os.Getenv("PATH"))
	_, err := runCmd(cmd)
	return err
}
