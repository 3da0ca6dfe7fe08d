package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/agent/events"
	"github.com/leasehold-cni/leasehold/pkg/agent/holds"
	"github.com/leasehold-cni/leasehold/pkg/agent/publish"
	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/agent/use"
	"github.com/leasehold-cni/leasehold/pkg/agent/windows"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/kube"
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

// kubeTasks returns the tasks that use the API server. They wait while it cannot be reached; the
// other tasks do not.
func kubeTasks(node agent.Node, config *rest.Config, o options, watcher *use.Watcher) ([]agent.Task, error) {
	clients, err := kube.NewClients(config)
	if err != nil {
		return nil, err
	}
	node.Metrics.MustRegister(kube.LeftOut)
	klog.SetSlogLogger(node.Log.With("from", "client-go"))
	shared := retention.NewNode(node.Service, &node.Changes.Store, node.Log, o.nodeName, clients)
	pool := publish.NewPool(clients.IPAM, o.nodeName)
	eventTask := &events.Task{Node: shared, Problem: node.Problem("events")}
	watcher.Pods, watcher.Report = shared.Retained, eventTask.InUse
	windowTask := &windows.Task{Node: shared, Invalid: eventTask.Invalid, Problem: node.Problem("windows")}
	publishTask := &publish.Publisher{Node: shared, Pool: pool, Active: watcher.Result,
		Writes: publish.NewWrites(node.Metrics), Problem: node.Problem("publish")}
	holdTask := &holds.Task{Node: shared, Named: pool.Named, MoveGrace: o.moveGrace, ForeverLimit: o.foreverLimit,
		Problem: node.Problem("holds")}

	type task = func(context.Context) error
	// An API server that has too many requests, because thousands of agents start at the same
	// moment, gets one of each agent until it has served that.
	connected := func(run task) task {
		return func(ctx context.Context) error {
			if !cache.WaitForCacheSync(ctx.Done(), shared.Pods.HasSynced) {
				return ctx.Err()
			}
			return run(ctx)
		}
	}
	return []agent.Task{
		{Name: "watch-pods", Run: shared.Pods.Run},
		{Name: "watch-pool", Run: connected(pool.Run)},
		{Name: "watch-limits", Run: connected(shared.Limits.Run)},
		{Name: "windows", Run: windowTask.Run},
		{Name: "publish", Run: connected(func(ctx context.Context) error {
			return publishTask.Run(ctx, &watcher.Changes)
		})},
		{Name: "events", Run: eventTask.Run},
		{Name: "holds", Run: connected(holdTask.Run)},
	}, nil
}
