package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

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
		{"wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"},
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

// WaitDeployed waits until leasehold's workloads are rolled out. After the limit it returns an
// error that describes their pods.
func (c *Cluster) WaitDeployed(ctx context.Context, limit time.Duration) error {
	if c.Plain {
		return nil
	}
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

// importEverywhere imports all built images on all nodes, and records their checksums.
func (c *Cluster) importEverywhere(ctx context.Context) error {
	names := c.NodeNames()
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { errs[i] = c.Node(name).importImages(ctx) })
	}
	wg.Wait()
	return errors.Join(append(errs, c.recordImages())...)
}

// recordImages records the checksum of the images that the nodes have.
func (c *Cluster) recordImages() error {
	sum, err := c.imagesSum()
	if err != nil {
		return err
	}
	return writeFile(c.path("run/images.sum"), sum)
}

// imagesChanged reports whether the built images differ from those of the nodes.
func (c *Cluster) imagesChanged() (bool, error) {
	sum, err := c.imagesSum()
	old, _ := os.ReadFile(c.path("run/images.sum"))
	return !bytes.Equal(old, sum), err
}

func (c *Cluster) imagesSum() ([]byte, error) {
	archives, err := filepath.Glob(c.path("images/*.tar"))
	if err != nil {
		return nil, err
	}
	sums, err := runCmd(exec.Command("sha256sum", archives...))
	return []byte(sums), err
}
