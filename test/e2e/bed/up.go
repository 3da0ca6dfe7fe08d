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

// Up builds what is missing and starts the cluster. What an earlier run left behind is removed first; if it fails,
// nothing is left but what it built and the logs.
func (b *Bed) Up(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("namespaces, mounts and bridges need root")
	}
	if err := b.installTools(ctx); err != nil {
		return err
	}
	if err := b.buildParts(ctx); err != nil {
		return err
	}
	if err := b.Down(ctx); err != nil {
		return fmt.Errorf("removing what was left: %w", err)
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
			b.say("failed, removing what was started; the logs stay in %s", b.path("run/logs"))
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
	b.say("waiting until the nodes are ready")
	if err := b.waitReady(ctx); err != nil {
		return err
	}
	b.say("waiting for leasehold's own pods")
	return b.WaitDeployed(ctx, 2*time.Minute)
}

// startNodes boots the nodes one after the other - the state of the bed is written on the way - and brings up what
// runs on them side by side.
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

// Client returns a client of the cluster with all rights.
func (b *Bed) Client() (*kubernetes.Clientset, error) {
	config, err := b.clientConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Dynamic returns a client for kinds that it need not know.
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

// waitReady waits until every node is Ready and has its IPAM plugin.
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

// NodeReady tells whether a node's Ready condition is true.
func NodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
