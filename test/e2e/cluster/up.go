package cluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

const goarch = runtime.GOARCH

// Up builds all programs and starts the cluster, after removing a former one. If it fails, only
// built programs and logs are left.
func (c *Cluster) Up(ctx context.Context) (err error) {
	if err := c.begin(ctx, c.parts()...); err != nil {
		return err
	}
	if err := os.RemoveAll(c.path("images")); err != nil { // a former cluster may have had others
		return err
	}
	if err := inOrder(ctx, c.buildImages, c.buildLeasectl); err != nil {
		return err
	}
	defer c.stopIfFailed(ctx, &err)
	return c.start(ctx)
}

// parts are the parts that machines of a cluster run.
func (c *Cluster) parts() []string {
	parts := []string{"debian", "plugins", "flannel", "etcd", "containerd", c.kubernetes()}
	if c.CNI == KubeRouter {
		parts = append(parts, KubeRouter)
	}
	return parts
}

// begin builds parts that machines run, and removes a former cluster.
func (c *Cluster) begin(ctx context.Context, parts ...string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("must run as root, to create namespaces, mounts and bridges")
	}
	if err := raiseWatches(); err != nil {
		c.logf("a second cluster may not start beside this one: %v", err)
	}
	if err := c.buildParts(ctx, parts...); err != nil {
		return err
	}
	if err := c.Down(ctx); err != nil {
		return fmt.Errorf("removing a former cluster: %w", err)
	}
	return nil
}

// raiseWatches lets several clusters run at the same time: the programs of each have some 40
// instances of inotify, of which the kernel allows 128 by default.
func raiseWatches() error {
	const path, enough = "/proc/sys/fs/inotify/max_user_instances", 1024
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || now >= enough {
		return err
	}
	return os.WriteFile(path, []byte(strconv.Itoa(enough)), 0o644)
}

// stopIfFailed stops a cluster whose start has failed with *err, and keeps the logs.
func (c *Cluster) stopIfFailed(ctx context.Context, err *error) {
	if *err != nil {
		c.logf("failed, stopping the cluster; the logs are in %s", c.path("run/logs"))
		c.takeDown(context.WithoutCancel(ctx))
	}
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.startBare(ctx); err != nil {
		return err
	}
	c.logf("starting %d nodes", c.Nodes)
	if err := c.startNodes(ctx); err != nil {
		return err
	}
	if !c.Plain {
		c.logf("applying the manifests of daemonset/")
		if err := c.Apply(ctx); err != nil {
			return err
		}
	}
	c.logf("waiting for the nodes to be ready")
	if err := c.waitReady(ctx, 7*time.Minute); err != nil {
		return err
	}
	c.logf("waiting for leasehold's pods")
	return c.WaitDeployed(ctx)
}

// startNodes boots the nodes one after the other, because each boot writes the state of the
// cluster, and then starts their services in parallel.
func (c *Cluster) startNodes(ctx context.Context) error {
	for _, name := range c.NodeNames() {
		if err := c.Node(name).boot(ctx); err != nil {
			return err
		}
	}
	var group errgroup.Group
	for _, name := range c.NodeNames() {
		group.Go(func() error {
			n := c.Node(name)
			if err := inOrder(ctx, n.prepare, n.startKubernetes); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil || c.CNI != KubeRouter {
		return err
	}
	return c.setPodSubnets(ctx)
}

// Clients returns clients with administrator's permissions.
func (c *Cluster) Clients() (*kubernetes.Clientset, *dynamic.DynamicClient, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, nil, err
	}
	config.QPS, config.Burst = 200, 400
	return kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config), nil
}

// waitReady waits until all nodes are Ready and have the IPAM plugin.
func (c *Cluster) waitReady(ctx context.Context, limit time.Duration) error {
	return machine.Poll(ctx, limit, func() error {
		err := run(ctx, append(c.kubectl("wait", "--for=condition=Ready", "--timeout="+limit.String(), "node"),
			c.NodeNames()...)...)
		for _, name := range c.NodeNames() {
			if !c.Plain && !exists(c.Node(name).Disk("/opt/cni/bin/leasehold")) {
				err = cmp.Or(err, fmt.Errorf("%s has no plugin yet", name))
			}
		}
		return err
	})
}

// NodeReady reports whether a node's Ready condition is true.
func NodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
