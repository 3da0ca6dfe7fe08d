package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
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
	client, err := c.Client()
	if err != nil {
		return err
	}
	err = poll(ctx, limit, func() error { return deployed(ctx, client) })
	if err != nil {
		pods, _ := runCmd(exec.CommandContext(ctx, c.Kubectl(), c.kubectl("describe", "pods", "-n", System)[1:]...))
		return fmt.Errorf("%w\n%s", err, pods)
	}
	return nil
}

func deployed(ctx context.Context, client *kubernetes.Clientset) error {
	daemons, err := client.AppsV1().DaemonSets(System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	deployments, err := client.AppsV1().Deployments(System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range daemons.Items {
		errs = append(errs, daemonSetDone(d))
	}
	for _, d := range deployments.Items {
		errs = append(errs, deploymentDone(d))
	}
	return errors.Join(errs...)
}

func daemonSetDone(d appsv1.DaemonSet) error {
	s, want := d.Status, d.Status.DesiredNumberScheduled
	if s.ObservedGeneration < d.Generation || want == 0 || s.UpdatedNumberScheduled < want || s.NumberAvailable < want {
		return fmt.Errorf("%s: %d of %d pods are up to date, %d available",
			d.Name, s.UpdatedNumberScheduled, want, s.NumberAvailable)
	}
	return nil
}

func deploymentDone(d appsv1.Deployment) error {
	s, want := d.Status, *d.Spec.Replicas
	if s.ObservedGeneration < d.Generation || s.UpdatedReplicas < want || s.AvailableReplicas < want ||
		s.Replicas > want {
		return fmt.Errorf("%s: %d of %d pods are up to date, %d available",
			d.Name, s.UpdatedReplicas, want, s.AvailableReplicas)
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

// recordImages records the checksums of the images that the nodes have.
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
	if err != nil {
		return false, err
	}
	old, err := os.ReadFile(c.path("run/images.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return !bytes.Equal(old, sum), nil
}

func (c *Cluster) imagesSum() ([]byte, error) {
	tarballs, err := filepath.Glob(c.path("images/*.tar"))
	if err != nil {
		return nil, err
	}
	var sums bytes.Buffer
	for _, t := range tarballs {
		data, err := os.ReadFile(t)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&sums, "%x %s\n", sha256.Sum256(data), filepath.Base(t))
	}
	return sums.Bytes(), nil
}
