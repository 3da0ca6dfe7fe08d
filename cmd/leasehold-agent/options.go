package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leasehold-cni/leasehold/pkg/agent/holds"
	"github.com/leasehold-cni/leasehold/pkg/daemon"
)

// options are the command-line options.
type options struct {
	kubeconfig   string
	nodeName     string
	noKube       bool
	hostRoot     string
	metricsAddr  string
	moveGrace    time.Duration
	foreverLimit time.Duration
	confDir      string
	binDirs      string
}

// execute runs the program and returns its exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	c := &cobra.Command{
		Use:   "leasehold-agent",
		Short: "Maintain the lease store of a node",
		Long: `leasehold-agent maintains the lease store of the node on which it runs, and connects
it to the API server: it ends holds that are over, releases leases of dead sandboxes,
publishes reservations and announces addresses that have returned. It has to run as
root and to see the processes of the host.`,
		Version: version,
		PreRunE: func(*cobra.Command, []string) error { return o.validate() },
	}
	o.addFlags(c.Flags())
	return daemon.Execute(ctx, c, func(ctx context.Context, log *slog.Logger) error { return run(ctx, o, log) }, args,
		stdout, stderr)
}

// addFlags sets the defaults and adds the flags that change the options.
func (o *options) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"`path` of a kubeconfig file; if empty, the pod's service account is used")
	f.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of this node; $NODE_NAME if not set")
	f.BoolVar(&o.noKube, "no-kube", false, "work without an API server")
	f.StringVar(&o.hostRoot, "host-root", "/", "root of the host's file system: / or /proc/<pid>/root")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":9470",
		"address of /metrics, /healthz and /readyz; empty disables them")
	f.DurationVar(&o.moveGrace, "move-grace", holds.MoveGrace,
		"how long a pod must be Ready on another node before its addresses here are released")
	f.DurationVar(&o.foreverLimit, "forever-limit", holds.ForeverLimit,
		"how long an address stays reserved forever for a pod that is away and has no StatefulSet; 0: without end")
	f.StringVar(&o.confDir, "cni-conf-dir", "/etc/cni/net.d",
		"the container runtime's directory of CNI configurations")
	f.StringVar(&o.binDirs, "cni-bin-dir", "/opt/cni/bin",
		"the container runtime's directories of CNI plugins, separated by colons")
}

// validate checks the values of the flags.
func (o options) validate() error {
	if !o.noKube && o.nodeName == "" {
		return errors.New("--node-name is not set; set it, or --no-kube to work without the API server")
	}
	if o.moveGrace < 10*time.Second {
		return fmt.Errorf("--move-grace %s is too short; want at least 10s", o.moveGrace)
	}
	if o.foreverLimit < 0 {
		return fmt.Errorf("--forever-limit %s is invalid; want at least 0", o.foreverLimit)
	}
	for _, dir := range append(strings.Split(o.binDirs, ":"), o.confDir) {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("directory %q of --cni-conf-dir or --cni-bin-dir is not an absolute path", dir)
		}
	}
	return nil
}
