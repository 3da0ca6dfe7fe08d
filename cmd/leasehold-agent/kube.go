package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/kube/events"
	"github.com/leasehold-cni/leasehold/pkg/kube/holds"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/kube/publish"
	"github.com/leasehold-cni/leasehold/pkg/kube/windows"
)

// serviceAccount is where a pod finds its token.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// kubeConfig says how to reach the API server. It is called before the process moves to the host's root, and what it
// returns needs no path of the container's.
func kubeConfig(file string) (*rest.Config, error) {
	config, err := anyConfig(file)
	if err != nil {
		return nil, fmt.Errorf("how to reach the API server: %w; --kubeconfig names a file, --no-kube works without", err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	config.CAFile, config.CertFile, config.KeyFile = "", "", ""
	config.UserAgent = "leasehold-agent"
	live.DetectDeadConnections()
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
	dir, err := agent.Keep(serviceAccount)
	if err != nil {
		return nil, err
	}
	// The kubelet writes a new token now and then, and the client reads it again.
	config.BearerToken, config.BearerTokenFile = "", dir+"/token"
	return config, nil
}

// kubeTasks are those that speak to the API server. Without it they wait, and the node's own go on.
func kubeTasks(node agent.Node, config *rest.Config, o options) ([]agent.Task, error) {
	clients, err := live.NewClients(config)
	if err != nil {
		return nil, err
	}
	log := node.Log
	klog.SetSlogLogger(log.With("from", "client-go"))
	pods := nodepods.New(clients.Core, o.nodeName, log)
	objects := publish.NewObjects(clients.IPAM, o.nodeName, log)
	teller := &events.Events{Service: node.Service, Node: o.nodeName, Client: clients.Events, Pods: pods, Log: log}
	follower := &windows.Windows{Service: node.Service, Pods: pods, Log: log, Invalid: teller.Invalid}
	publisher := &publish.Publisher{
		Service: node.Service, Node: o.nodeName, Core: clients.Core, Pods: pods, Objects: objects,
		Log: log, Metrics: publish.NewMetrics(node.Metrics),
	}
	watcher := &holds.Holds{Service: node.Service, Node: o.nodeName, Clients: clients, Log: log, MoveGrace: o.moveGrace}

	following := func(run func(context.Context, <-chan struct{}) error) func(context.Context) error {
		changes := node.Changes.Subscribe()
		return func(ctx context.Context) error { return run(ctx, changes) }
	}
	return []agent.Task{
		{Name: "pods", Run: pods.Run},
		{Name: "reservations", Run: objects.Run},
		{Name: "windows", Run: following(follower.Run)},
		{Name: "publish", Run: following(publisher.Run)},
		{Name: "events", Run: following(teller.Run)},
		{Name: "holds", Run: watcher.Run},
	}, nil
}
