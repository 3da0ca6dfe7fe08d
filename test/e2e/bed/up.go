package bed

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const goarch = runtime.GOARCH

// Up builds all programs and starts the cluster, after removing a former one. If it fails, only
// built programs and logs are left.
func (b *Bed) Up(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("must run as root, to create namespaces, mounts and bridges")
	}
	if err := b.installTools(ctx); err != nil {
		return err
	}
	if err := b.buildParts(ctx); err != nil {
		return err
	}
	if err := b.Down(ctx); err != nil {
		return fmt.Errorf("removing a former cluster: %w", err)
	}
	images := bedImages()
	if b.Keeps() {
		images = append(images, b.ProductImages("bed")...)
	}
	if err := os.RemoveAll(b.path("images")); err != nil {
		return err
	}
	if _, err := b.BuildImages(ctx, images); err != nil {
		return err
	}
	if err := b.buildTrace(ctx); err != nil {
		return err
	}
	if b.Keeps() {
		if _, err := b.buildProgram(ctx, leasectl); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			b.say("failed, stopping the cluster; the logs are in %s", b.path("run/logs"))
			b.takeDown(context.WithoutCancel(ctx))
		}
	}()
	return b.start(ctx)
}

func (b *Bed) start(ctx context.Context) error {
	if err := b.startBare(ctx); err != nil {
		return err
	}
	b.say("starting %d nodes", b.Nodes)
	if err := b.startNodes(ctx); err != nil {
		return err
	}
	if b.Keeps() {
		b.say("applying the manifests of daemonset/")
		if err := b.apply(ctx); err != nil {
			return err
		}
	}
	b.say("waiting for the nodes to be ready")
	if err := b.waitReady(ctx); err != nil {
		return err
	}
	b.say("waiting for leasehold's pods")
	return b.WaitDeployed(ctx, 2*time.Minute)
}

// startNodes boots the nodes one after the other, because each boot writes the state of the bed,
// and then starts their services in parallel.
func (b *Bed) startNodes(ctx context.Context) error {
	for i, name := range b.NodeNames() {
		if err := b.powerOn(ctx, name, b.nodeAddr(i)); err != nil {
			return err
		}
	}
	errs := make([]error, b.Nodes)
	var wg sync.WaitGroup
	for i, name := range b.NodeNames() {
		wg.Go(func() {
			n := b.Node(name)
			if errs[i] = n.furnish(ctx); errs[i] == nil {
				errs[i] = n.StartKubelet(ctx)
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %w", b.NodeNames()[i], err)
		}
	}
	return b.noteImages()
}

// Client returns a client with administrator's permissions.
func (b *Bed) Client() (*kubernetes.Clientset, error) {
	config, err := b.clientConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Dynamic returns a dynamic client with administrator's permissions.
func (b *Bed) Dynamic() (*dynamic.DynamicClient, error) {
	config, err := b.clientConfig()
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(config)
}

func (b *Bed) clientConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", b.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 400
	return config, nil
}

// waitReady waits until all nodes are Ready and have the IPAM plugin.
func (b *Bed) waitReady(ctx context.Context) error { return b.waitReadyFor(ctx, 3*time.Minute) }

func (b *Bed) waitReadyFor(ctx context.Context, limit time.Duration) error {
	client, err := b.Client()
	if err != nil {
		return err
	}
	return poll(ctx, limit, func() error {
		for _, name := range b.NodeNames() {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !NodeReady(node) {
				return fmt.Errorf("%s is not Ready", name)
			}
			if plugin := b.Node(name).Disk("/opt/cni/bin/" + b.IPAM); !exists(plugin) {
				return fmt.Errorf("%s has no plugin %s yet", name, b.IPAM)
			}
		}
		return nil
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
