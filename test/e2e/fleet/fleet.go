package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
)

// Config is the configuration of a Fleet.
type Config struct {
	API     *rest.Config // with administrator's permissions
	Plugin  string       // path of the IPAM plugin
	Dir     string       // directory of the nodes' files; the caller removes it
	Network netip.Prefix // pod addresses, a /20 for each node
	// Heartbeat is how often a node renews its Lease. Many nodes on a small machine need a long
	// interval, and a longer node-monitor-grace-period.
	Heartbeat time.Duration
	Log       *slog.Logger // of the nodes

	// Runtime is used by Run in place of the plugin.
	Runtime Runtime
	// Slow is whether pods take as long as with a real kubelet: begins, becomesReady and ends.
	Slow bool
	// Seen is called for each pod that is new or has changed, Gone for each that is deleted, both
	// one at a time. The pod has only the fields that kubeletsPod keeps. They may be nil.
	Seen, Gone func(*corev1.Pod)
}

// A Runtime starts and stops the sandboxes of pods. Its methods may be called concurrently.
type Runtime interface {
	Add(ctx context.Context, node string, p *corev1.Pod, id string) (netip.Addr, error)
	Del(ctx context.Context, node string, p *corev1.Pod, id string) error
}

// Fleet is a set of simulated nodes.
type Fleet struct {
	Config
	client  *kubernetes.Clientset
	clients *informer.Clients // for kinds that the clientset does not have
	nodes   map[string]*Node

	calls chan struct{} // limits the number of concurrent plugin calls

	mu      sync.Mutex
	pods    map[podKey]*pod
	running map[podKey]string // see Run
	wg      sync.WaitGroup
}

// New returns a fleet without nodes.
func New(c Config) (*Fleet, error) {
	api := rest.CopyConfig(c.API)
	api.QPS = -1
	api.ContentType, api.AcceptContentTypes = "application/vnd.kubernetes.protobuf",
		"application/vnd.kubernetes.protobuf,application/json"
	clients, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	others, err := informer.NewClients(c.API)
	if err != nil {
		return nil, err
	}
	return &Fleet{Config: c, client: clients, clients: others, nodes: map[string]*Node{}, pods: map[podKey]*pod{},
		calls: make(chan struct{}, 8)}, nil
}

// Start registers the nodes, and waits until all are Ready and without the not-ready taint. From
// then on they run the pods that are scheduled to them, until ctx is done.
func (f *Fleet) Start(ctx context.Context, nodes []*corev1.Node) error {
	for i, object := range nodes {
		n, err := f.newNode(i, object.Name)
		if err != nil {
			return err
		}
		f.nodes[n.Name] = n
	}
	group, in := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, object := range nodes {
		group.Go(func() error { return f.register(in, object) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, object := range nodes {
		// Spread over the interval, as those of real nodes.
		first := f.Heartbeat * time.Duration(i+1) / time.Duration(len(nodes))
		f.wg.Go(func() { f.beat(ctx, object.Name, first) })
	}
	for _, n := range f.nodes {
		tasks, err := f.publishing(n)
		if err != nil {
			return err
		}
		f.wg.Go(func() {
			if err := agent.Run(ctx, f.Log, tasks); err != nil {
				f.warn(ctx, "publishing failed", "node", n.Name, "error", err)
			}
		})
	}
	if err := f.watchPods(ctx); err != nil {
		return err
	}
	return f.waitReady(ctx)
}

// Run runs the pods of nodes that exist, by the Runtime, until ctx is done. running has the pods
// that run already, and the ids of their containers. Nothing renews the nodes' Leases, and no agent
// is started.
func (f *Fleet) Run(ctx context.Context, nodes []string, running map[types.UID]string) error {
	for _, name := range nodes {
		f.nodes[name] = &Node{Name: name}
	}
	f.running = running
	return f.watchPods(ctx)
}

// Wait waits until the fleet has stopped, after the context of Start is done, and removes the
// network namespaces of the pods.
func (f *Fleet) Wait() {
	f.wg.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pods {
		p.close()
	}
}

func (f *Fleet) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		list, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		waiting := ""
		for _, n := range list.Items {
			for _, t := range n.Spec.Taints {
				if t.Key == corev1.TaintNodeNotReady && f.nodes[n.Name] != nil {
					waiting = n.Name
				}
			}
		}
		if waiting == "" {
			return nil
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("node %s is not ready: %w", waiting, err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (f *Fleet) warn(ctx context.Context, message string, args ...any) {
	if ctx.Err() == nil { // errors during the shutdown are expected
		f.Log.Warn(message, args...)
	}
}

var errNoRoom = errors.New("the network is too small for the number of nodes")
