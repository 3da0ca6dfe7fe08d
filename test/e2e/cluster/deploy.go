package cluster

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// System is the namespace of leasehold's pods.
const System = "leasehold-system"

// The names of leasehold's workloads.
const (
	Agent   = "leasehold-agent"
	Manager = "leasehold-manager"
)

// Apply applies daemonset/ with the cluster's images, and waits until the CRDs are established.
func (c *Cluster) Apply(ctx context.Context) error {
	for _, args := range [][]string{
		{"apply", "-k", filepath.Join(c.Repo, "test/e2e/manifests")},
		{"wait", "--for=condition=Established", "crd", "--all", "--timeout=5m"},
	} {
		if err := run(ctx, c.kubectl(args...)...); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) kubectl(args ...string) []string {
	return append([]string{c.Kubectl(), "--kubeconfig=" + c.Kubeconfig()}, args...)
}

// WaitDeployed waits until leasehold's workloads are rolled out. After a limit that only a failure
// reaches it returns an error that describes their pods.
func (c *Cluster) WaitDeployed(ctx context.Context) error {
	if c.Plain {
		return nil
	}
	const limit = 7 * time.Minute
	err := machine.Poll(ctx, limit, func() (err error) { // the API server may be restarted meanwhile
		for _, workload := range []string{"daemonset/" + Agent, "deployment/" + Manager} {
			err = cmp.Or(err, run(ctx, c.kubectl("-n", System, "rollout", "status", workload,
				"--timeout="+limit.String())...))
		}
		return err
	})
	if err != nil {
		pods, _ := runCmd(exec.CommandContext(ctx, c.Kubectl(), c.kubectl("describe", "pods", "-n", System)[1:]...))
		return fmt.Errorf("%w\n%s", err, pods)
	}
	return nil
}

// restart restarts leasehold's workloads after their images have changed under the same tag.
func (c *Cluster) restart(ctx context.Context) error {
	return run(ctx, c.kubectl("-n", System, "rollout", "restart", "daemonset,deployment")...)
}

// importEverywhere imports all built images on all nodes.
func (c *Cluster) importEverywhere(ctx context.Context) error {
	var group errgroup.Group
	for _, name := range c.NodeNames() {
		group.Go(func() error { return c.Node(name).ImportImages(ctx, c.Images()) })
	}
	return group.Wait()
}
