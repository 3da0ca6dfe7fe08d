package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/agent/active"
	"github.com/leasehold-cni/leasehold/pkg/agent/events"
	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/agent/publish"
	"github.com/leasehold-cni/leasehold/pkg/agent/reclaim"
	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/metricsauth"
)

// serviceAccount is the directory with the token of a pod's service account.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// kubeConfig returns the configuration of the API client. It must be called before the process
// changes its root directory: the returned configuration refers to no path in the container.
func kubeConfig(file string) (*rest.Config, error) {
	config, err := anyConfig(file)
	if err != nil {
		return nil, fmt.Errorf(
			"configuring the API client: %w; set --kubeconfig, or --no-kube to work without the API server", err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	config.CAFile, config.CertFile, config.KeyFile = "", "", ""
	config.UserAgent = "leasehold-agent"
	return config, nil
}

func anyConfig(file string) (*rest.Config, error) {
	if file != "" {
		return clientcmd.BuildConfigFromFlags("", file)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	dir, err := host.OpenDirPath(serviceAccount)
	if err != nil {
		return nil, err
	}
	// The kubelet renews the token, and the client reads the file again.
	config.BearerToken, config.BearerTokenFile = "", dir+"/token"
	return config, nil
}

// secured returns how the agent protects its HTTP server, nil without --metrics-secure.
func secured(config *rest.Config, o options, log *slog.Logger) (*agent.Secure, error) {
	if !o.secure {
		return nil, nil
	}
	clients, err := informer.NewClients(config)
	if err != nil {
		return nil, err
	}
	return &agent.Secure{TLS: metricsauth.SelfSigned(o.nodeName), Filter: metricsauth.New(clients, log).Handler}, nil
}

// kubeTasks returns the tasks that use the API server. They wait while it cannot be reached; the
// other tasks do not.
func kubeTasks(node agent.Node, config *rest.Config, o options, watcher *active.Watcher) ([]agent.Task, error) {
	clients, err := informer.NewClients(config)
	if err != nil {
		return nil, err
	}
	log := node.Log
	klog.SetSlogLogger(log.With("from", "client-go"))
	pods := podcache.New(clients.Core, o.nodeName)
	pool := publish.NewPool(clients.IPAM, o.nodeName)
	objects := publish.NewObjects(clients.IPAM, o.nodeName, pool, log)
	eventTask := &events.Events{Service: node.Service, Node: o.nodeName, Client: clients.Events, Pods: pods, Log: log}
	watcher.Pods, watcher.Queue = pods, eventTask.Queue
	windowTask := &retention.Windows{Service: node.Service, Pods: pods, Core: clients.Core, Log: log,
		Invalid: eventTask.Invalid}
	publishTask := &publish.Publisher{
		Service: node.Service, Node: o.nodeName, Core: clients.Core, Pods: pods, Objects: objects,
		Active: watcher.Result, Log: log, Metrics: publish.NewMetrics(node.Metrics),
	}
	poolTask := &publish.NodePool{Service: node.Service, Node: o.nodeName, Clients: clients, Pool: pool,
		UID: publishTask.NodeUID, Reread: publishTask.Reread, Lost: objects.Relist, Log: log, Active: watcher.Result}
	activeChanges := watcher.Changes()
	holdTask := &reclaim.Holds{Service: node.Service, Node: o.nodeName, Clients: clients, Log: log,
		Named: pool.Named, Connected: pods.Connected, MoveGrace: o.moveGrace, ForeverLimit: o.foreverLimit,
		Ending: eventTask.Ending}

	withChanges := func(run func(context.Context, <-chan struct{}) error) func(context.Context) error {
		changes := node.Changes.Subscribe()
		return func(ctx context.Context) error { return run(ctx, changes) }
	}
	// An API server that has too many requests, because thousands of agents start at the same
	// moment, gets one of each agent until it has served that.
	connected := func(run func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			if !pods.Connected(ctx) {
				return ctx.Err()
			}
			return run(ctx)
		}
	}
	tasks := []agent.Task{
		{Name: "pods", Run: pods.Run},
		{Name: "named", Run: connected(pool.Run)},
		{Name: "reservations", Run: connected(objects.Run)},
		{Name: "windows", Run: withChanges(windowTask.Run)},
		{Name: "publish", Run: connected(withChanges(publishTask.Run))},
		{Name: "pool", Run: connected(func(ctx context.Context) error {
			return poolTask.Run(ctx, informer.Any(ctx, activeChanges, publishTask.Identified()))
		})},
		{Name: "events", Run: withChanges(eventTask.Run)},
		{Name: "holds", Run: holdTask.Run},
	}
	if namespace, name, ok := strings.Cut(o.limits, "/"); ok {
		limitTask := &retention.Limits{Service: node.Service, Core: clients.Core, Namespace: namespace, Name: name,
			Log: log}
		tasks = append(tasks, agent.Task{Name: "limits", Run: connected(limitTask.Run)})
	}
	return tasks, nil
}
