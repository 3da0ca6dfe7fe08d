//go:build simulated

// An overlay adds these files to cmd/leasehold-agent, so that the tasks of the simulated agents are
// those of kubeTasks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// init takes the place of main if the program is started as
//
//	leasehold-agent simulate <socket> <directory of the nodes' files>
func init() {
	if len(os.Args) != 4 || os.Args[1] != "simulate" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := simulate(ctx, os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// The requests that the program serves on its socket, as JSON.
type (
	// nodesRequest adds nodes, and the leases of their pods.
	nodesRequest struct {
		API, CA string // of the API server; CA is PEM
		Nodes   []struct {
			Name, Token string
			Subnet      netip.Prefix
			Pods        []struct {
				Namespace, Name, UID, ID, Container string
				Address                             netip.Addr
				Window                              time.Duration
				Released                            *time.Time // nil while the pod exists
			}
		}
	}
	// agentsRequest starts the agents of nodes, spread over a duration, or stops them.
	agentsRequest struct {
		Nodes  []string
		Stop   bool
		Within time.Duration
	}
	// callRequest is an ADD, or a DEL of the container.
	callRequest struct {
		Node, Namespace, Pod, UID, Container string
		Annotations                          map[string]string
		Del                                  bool
	}
	callReply struct{ Address string }
)

type simulation struct {
	dir   string
	log   *slog.Logger
	clock func() lease.Instant

	mu    sync.Mutex
	nodes map[string]*simulatedNode
}

type simulatedNode struct {
	name    string
	kernel  *kernel
	service *transact.Node
	pool    lease.Pool
	sets    []pool.Set
	changes *agent.Changes
	config  *rest.Config

	stop func() // nil while the agent does not run
}

func simulate(ctx context.Context, socket, dir string) error {
	_, clock, err := host.FromEnv(func(string) string { return "" })
	if err != nil {
		return err
	}
	s := &simulation{dir: dir, clock: clock, nodes: map[string]*simulatedNode{},
		log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /nodes", serve(s.addNodes))
	mux.HandleFunc("POST /agents", serve(func(r agentsRequest) (struct{}, error) {
		return struct{}{}, s.agents(ctx, r)
	}))
	mux.HandleFunc("POST /call", serve(func(r callRequest) (callReply, error) { return s.call(ctx, r) }))
	server := &http.Server{Handler: mux}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serve answers requests with the result of do, or with status 500 and the error.
func serve[Request, Reply any](do func(Request) (Reply, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request Request
		err := json.NewDecoder(r.Body).Decode(&request)
		var reply Reply
		if err == nil {
			reply, err = do(request)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(reply) // the client may be gone
	}
}

func (s *simulation) addNodes(r nodesRequest) (struct{}, error) {
	for _, object := range r.Nodes {
		whole, err := pool.NewRange(object.Subnet, netip.Addr{}, netip.Addr{}, netip.Addr{})
		if err != nil {
			return struct{}{}, err
		}
		set, err := pool.NewSet(whole)
		if err != nil {
			return struct{}{}, err
		}
		dir := filepath.Join(s.dir, object.Name)
		dirs := store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
		k := &kernel{}
		n := &simulatedNode{name: object.Name, kernel: k, sets: []pool.Set{set},
			pool:    lease.Pool{DataDir: filepath.Join(dir, "networks"), Network: "cbr0"},
			service: &transact.Node{Store: store.New(dirs), Host: k, Clock: s.clock},
			changes: agent.NewChanges(dirs, s.log)}
		now := n.service.Clock()
		err = n.service.Store.Update(context.Background(), store.Options{}, func(tx *store.Tx) error {
			err := errors.Join(tx.SetNamespaceIDs(k.NamespaceIDs(now.BootID)), tx.SetAdopted(n.pool),
				tx.BeginBoot(now.BootID))
			then := now
			then.Wall, then.Boot = then.Wall.Add(-time.Hour), then.Boot-time.Hour
			for _, p := range object.Pods {
				holder := lease.Holder{ContainerID: p.Container, IfName: "eth0", BootID: now.BootID,
					Netns: k.begin(p.Container)}
				l, e := lease.Apply(lease.Lease{}, lease.Bind{ID: p.ID, Pool: n.pool, Address: p.Address, Set: set.ID(),
					Namespace: p.Namespace, Name: p.Name, UID: p.UID, Window: lease.Window(p.Window),
					Soft: policy.Defaults().SoftHold, Holder: holder}, then)
				if e == nil && p.Released != nil {
					k.end(p.Container)
					then := now
					then.Wall, then.Boot = p.Released.UTC(), then.Boot-now.Wall.Sub(*p.Released)
					l, e = lease.Apply(l, lease.Release{Holder: holder}, then)
				}
				err = errors.Join(err, e, tx.Put(n.pool, p.Address, l))
			}
			return err
		})
		if err != nil {
			return struct{}{}, fmt.Errorf("node %s: %w", n.name, err)
		}
		n.config = &rest.Config{Host: r.API, BearerToken: object.Token, UserAgent: "leasehold-agent"}
		n.config.CAData = []byte(r.CA)
		s.mu.Lock()
		s.nodes[n.name] = n
		s.mu.Unlock()
	}
	return struct{}{}, nil
}

func (s *simulation) node(name string) (*simulatedNode, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil {
		return nil, fmt.Errorf("node %q is not known", name)
	}
	return n, nil
}

func (s *simulation) agents(ctx context.Context, r agentsRequest) error {
	began := time.Now()
	var stopping sync.WaitGroup
	for i, name := range r.Nodes {
		n, err := s.node(name)
		if err != nil {
			return err
		}
		if r.Stop {
			if n.stop != nil {
				stopping.Go(n.stop)
				n.stop = nil
			}
			continue
		}
		time.Sleep(time.Until(began.Add(r.Within * time.Duration(i) / time.Duration(len(r.Nodes)))))
		if n.stop != nil {
			continue
		}
		if err := s.startAgent(ctx, n); err != nil {
			return fmt.Errorf("the agent of %s: %w", name, err)
		}
	}
	stopping.Wait()
	return nil
}

// startAgent starts the tasks of an agent that use the API server, with a connection of their own.
func (s *simulation) startAgent(ctx context.Context, n *simulatedNode) error {
	config := rest.CopyConfig(n.config)
	base, err := transport.New(&transport.Config{TLS: transport.TLSConfig{CAData: config.CAData},
		DialHolder: &transport.DialHolder{Dial: (&net.Dialer{Timeout: 30 * time.Second}).DialContext}})
	if err != nil {
		return err
	}
	config.Transport, config.TLSClientConfig = base, rest.TLSClientConfig{}
	log := s.log.With("node", n.name)
	// The defaults of the flags that kubeTasks reads.
	o := options{nodeName: n.name, moveGrace: retention.MoveGrace, foreverLimit: retention.ForeverLimit}
	node := agent.Node{Service: &maintain.Service{Node: n.service}, Changes: n.changes, Log: log,
		Metrics: prometheus.NewRegistry()}
	tasks, err := kubeTasks(node, config, o, newWatcher(node, o))
	if err != nil {
		return err
	}
	tasks = append(tasks, agent.Task{Name: "changes", Run: n.changes.Run})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := agent.Run(ctx, log, tasks); err != nil {
			log.Error("agent failed", "error", err)
		}
		if closing, ok := base.(interface{ CloseIdleConnections() }); ok {
			closing.CloseIdleConnections()
		}
	}()
	n.stop = func() { cancel(); <-done }
	return nil
}

func (s *simulation) call(ctx context.Context, r callRequest) (callReply, error) {
	n, err := s.node(r.Node)
	if err != nil {
		return callReply{}, err
	}
	plugin := &ipam.Service{Node: n.service}
	plugged := *n.service
	plugged.Plugin = true
	plugin.Node = &plugged
	options := policy.Defaults()
	if r.Del {
		err := plugin.Release(ctx, lease.Attachment{ContainerID: r.Container, IfName: "eth0"},
			ipam.PoolHint{Pool: n.pool, Sets: n.sets, Options: &options})
		n.kernel.end(r.Container)
		return callReply{}, err
	}
	n.kernel.begin(r.Container)
	retention, err := policy.RequestFrom(r.Annotations, true)
	if err != nil {
		return callReply{}, err
	}
	result, err := plugin.Assign(ctx, ipam.Request{Pool: n.pool, ContainerID: r.Container, IfName: "eth0",
		NetnsPath: netnsPath(r.Container), Pod: ipam.Pod{Namespace: r.Namespace, Name: r.Pod, UID: r.UID},
		Sets: n.sets, Retention: retention, Options: options})
	if err != nil {
		return callReply{}, err
	}
	return callReply{Address: result.Addresses[0].Address.Addr().String()}, nil
}
