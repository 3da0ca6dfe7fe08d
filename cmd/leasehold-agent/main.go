// leasehold-agent is the node agent: it maintains the lease store of a node and connects it to the
// API server.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/agent/use"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

var version = "(devel)" // set at link time

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// newWatcher returns the watcher of whether leasehold is in use.
func newWatcher(node agent.Node, o options) *use.Watcher {
	return &use.Watcher{Service: node.Service, Node: o.nodeName, Log: node.Log, ConfDir: o.confDir,
		RuntimeFiles: cniconf.RuntimeFiles, Binaries: strings.Split(o.binDirs, ":")}
}

// nodeTasks returns the tasks that need no API server.
func nodeTasks(node agent.Node, metrics prometheus.Gatherer, view *host.Host, o options,
	watcher *use.Watcher, health *agent.Health) []agent.Task {
	tasks := []agent.Task{{Name: "changes", Run: node.Changes.Run}, agent.Leases(node, health, watcher),
		agent.Calls(node), agent.Announce(node, view)}
	if o.metricsAddr != "" {
		tasks = append(tasks, agent.Serve(o.metricsAddr, metrics, health, node.Log))
	}
	return tasks
}

func run(ctx context.Context, o options, log *slog.Logger) error {
	dirs := store.DirsFromEnv(os.Getenv)
	machine, clock, err := host.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	var config *rest.Config
	if !o.noKube {
		if config, err = kubeConfig(o.kubeconfig); err != nil {
			return err
		}
	}
	// From here on the container's own files cannot be read.
	view, err := host.EnterHostRoot(o.hostRoot, machine)
	if err != nil {
		return err
	}
	leases := store.New(dirs)
	leases.BootID = view.BootID
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	node := agent.Node{
		Service: &maintain.Service{Node: &operation.Node{
			Store: leases, Host: view, Clock: clock,
			Warn: func(text string) { log.Warn(text) },
		}},
		Changes: agent.NewChanges(dirs, log),
		Log:     log,
		Metrics: registry,
		Failing: agent.NewFailing(registry),
	}
	watcher := newWatcher(node, o)
	watcher.Register(registry)
	health := &agent.Health{}
	tasks := nodeTasks(node, registry, view, o, watcher, health)
	if !o.noKube {
		config.Wrap(health.Transport)
		more, err := kubeTasks(node, config, o, watcher)
		if err != nil {
			return err
		}
		tasks = append(tasks, more...)
	}
	log.Info("agent starting", "version", version, "stateDir", dirs.State, "hostRoot", o.hostRoot)
	defer log.Info("agent stopped")
	return agent.Run(ctx, log, tasks)
}
