// leasehold-agent is the node agent: it maintains the lease store of a node and connects it to the
// API server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/agent/active"
	"github.com/leasehold-cni/leasehold/pkg/agent/reclaim"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

var version string // set at link time

// Exit codes.
const (
	exitFailed = 1 // it could not start, or failed; standard error has the reason
	exitUsage  = 2 // invalid arguments or flags
)

// options are the command-line options.
type options struct {
	kubeconfig   string
	nodeName     string
	noKube       bool
	hostRoot     string
	metricsAddr  string
	secure       bool
	logLevel     string
	logFormat    string
	moveGrace    time.Duration
	foreverLimit time.Duration
	limits       string
	confDir      string
	binDirs      string
	maxConfNum   int
	skipInvalid  bool
	version      bool
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, pflag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "leasehold-agent:", err)
		os.Exit(exitUsage)
	}
	if o.version {
		fmt.Println("leasehold-agent", env.Version(version))
		return
	}
	log, err := newLog(o, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "leasehold-agent:", err)
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, o, log); err != nil {
		log.Error("agent failed", "error", err)
		os.Exit(exitFailed)
	}
}

// parse parses the flags. It has one statement for each flag and one check for each rule between
// flags, and no other logic, so that it stays one function.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := pflag.NewFlagSet("leasehold-agent", pflag.ContinueOnError)
	f.SetOutput(stderr)
	f.SortFlags = false
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"`path` of a kubeconfig file; if empty, the pod's service account is used")
	f.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of this node; $NODE_NAME if not set")
	f.BoolVar(&o.noKube, "no-kube", false, "work without an API server")
	f.StringVar(&o.hostRoot, "host-root", "/", "root of the host's file system: / or /proc/<pid>/root")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":9470",
		"address of /metrics, /healthz and /readyz; empty disables them")
	f.BoolVar(&o.secure, "metrics-secure", false, "serve over HTTPS, and metrics only to clients with a token whose "+
		"user the API server allows to get /metrics")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.DurationVar(&o.moveGrace, "move-grace", reclaim.MoveGrace,
		"how long a pod must be Ready on another node before its addresses here are released")
	f.DurationVar(&o.foreverLimit, "forever-limit", reclaim.ForeverLimit,
		"how long an address stays reserved forever for a pod that is away and has no StatefulSet; 0: without end")
	f.StringVar(&o.limits, "limits", "leasehold-system/leasehold-limits",
		"namespace and `name` of the ConfigMap with the limits of namespaces; empty: no limits are read")
	f.StringVar(&o.confDir, "cni-conf-dir", "/etc/cni/net.d",
		"the container runtime's directory of CNI configurations; empty disables the check whether leasehold is in use")
	f.StringVar(&o.binDirs, "cni-bin-dir", "/opt/cni/bin",
		"the container runtime's directories of CNI plugins, separated by colons")
	f.IntVar(&o.maxConfNum, "cni-max-conf-num", 1,
		"how many configurations the container runtime loads (containerd's max_conf_num); 0: all")
	f.BoolVar(&o.skipInvalid, "cni-skip-invalid", false,
		"the container runtime passes over configurations that are not valid, as CRI-O does")
	f.BoolVar(&o.version, "version", false, "print the version")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if !o.noKube && o.nodeName == "" && !o.version {
		return o, errors.New("--node-name is not set; set it, or --no-kube to work without the API server")
	}
	if o.noKube && o.secure {
		return o, errors.New("--metrics-secure needs the API server; remove it or --no-kube")
	}
	if o.moveGrace < 10*time.Second {
		return o, fmt.Errorf("--move-grace %s is too short; want at least 10s", o.moveGrace)
	}
	if namespace, name, ok := strings.Cut(o.limits, "/"); o.limits != "" && (!ok || namespace == "" || name == "") {
		return o, fmt.Errorf("--limits %q is invalid; want a namespace and a name, such as system/limits", o.limits)
	}
	if o.foreverLimit < 0 {
		return o, fmt.Errorf("--forever-limit %s is invalid; want at least 0", o.foreverLimit)
	}
	for _, dir := range append(strings.Split(o.binDirs, ":"), o.confDir) {
		if o.confDir != "" && !filepath.IsAbs(dir) {
			return o, fmt.Errorf("directory %q of --cni-conf-dir or --cni-bin-dir is not an absolute path", dir)
		}
	}
	if o.maxConfNum < 0 {
		return o, fmt.Errorf("--cni-max-conf-num %d is invalid; want at least 0", o.maxConfNum)
	}
	return o, nil
}

func newLog(o options, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q is invalid; want debug, info, warn or error", o.logLevel)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch o.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format %q is invalid; want text or json", o.logFormat)
}

// newWatcher returns the watcher of whether leasehold is in use.
func newWatcher(node agent.Node, o options) *active.Watcher {
	rules := cniconf.Rules{MaxFiles: o.maxConfNum, SkipInvalid: o.skipInvalid}
	if o.maxConfNum == 0 {
		rules.MaxFiles = -1
	}
	return &active.Watcher{Service: node.Service, Node: o.nodeName, Log: node.Log, ConfDir: o.confDir, Rules: rules,
		Binaries: &cniconf.Binaries{Dirs: strings.Split(o.binDirs, ":")}}
}

func run(ctx context.Context, o options, log *slog.Logger) error {
	host, err := env.Read(os.Getenv)
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
	view, err := sandbox.EnterHostRoot(o.hostRoot, host.Host)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	node := newNode(host, view, registry, log)
	metrics, health := agent.NewMetrics(node), &agent.Health{}
	registry.MustRegister(metrics)
	watcher := newWatcher(node, o)
	tasks := []agent.Task{
		{Name: "changes", Run: node.Changes.Run},
		agent.Collect(node, health, watcher.Served, watcher.Changes()),
		agent.Snapshot(node),
		metrics.Task(),
		agent.Announce(node, view),
	}
	if o.metricsAddr != "" {
		secure, err := secured(config, o, log)
		if err != nil {
			return err
		}
		tasks = append(tasks, agent.Serve(o.metricsAddr, registry, health, secure, log))
	}
	if o.confDir != "" {
		watcher.Register(registry)
		tasks = append(tasks, agent.Task{Name: "active", Run: watcher.Run})
	}
	if !o.noKube {
		more, err := kubeTasks(node, config, o, watcher)
		if err != nil {
			return err
		}
		tasks = append(tasks, more...)
	}
	log.Info("agent starting", "version", env.Version(version), "stateDir", host.Dirs.State, "hostRoot", o.hostRoot)
	err = agent.Run(metrics.Watch(ctx), log, tasks)
	locks := metrics.Locks()
	log.Info("agent stopped", "longestLock", locks.Longest, "locks", locks.All, "over2ms", locks.Long)
	return err
}

// newNode returns what the tasks of the agent share.
func newNode(host env.Node, view *sandbox.Host, registry *prometheus.Registry, log *slog.Logger) agent.Node {
	return agent.Node{
		Service: &maintain.Service{Node: &transact.Node{
			Store: store.New(host.Dirs), Host: view, Clock: host.Clock,
			Warn: func(text string) { log.Warn(text) },
		}},
		Changes: agent.NewChanges(host.Dirs.State, log),
		Log:     log,
		Metrics: registry,
	}
}
