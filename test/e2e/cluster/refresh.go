package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Healthy returns an error if a running cluster cannot be used.
func (c *Cluster) Healthy(ctx context.Context) error {
	if exists(c.path("run/in-use")) {
		return errors.New("the last run did not finish")
	}
	for _, name := range append(c.NodeNames(), Control) {
		if c.PID(name) == 0 {
			return fmt.Errorf("machine %s is off", name)
		}
	}
	return c.waitReady(ctx, 30*time.Second)
}

// MarkInUse marks the cluster as being changed by a run. unmark removes the mark, when the run has
// restored the nodes.
func (c *Cluster) MarkInUse() (unmark func() error, err error) {
	path := c.path("run/in-use")
	return func() error { return os.Remove(path) }, writeFile(path, nil)
}

// Refresh deploys the plugin, the agent, the manager and the manifests of the source tree to a
// running cluster.
func (c *Cluster) Refresh(ctx context.Context) error {
	return inOrder(ctx, c.buildLeasectl, c.buildImages, c.importEverywhere, c.Apply, c.restart, c.WaitDeployed)
}
