// leasectl inspects and manages the lease store of a node, and under the name kubectl-leasehold
// leasehold in a cluster. Under the name leasehold it is what leasectl uninstall leaves of the
// plugin (pkg/install).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cli/cluster"
	"github.com/leasehold-cni/leasehold/pkg/cli/node"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/install"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

var version = "(devel)" // set at link time

func main() {
	if install.IsForwarder(os.Args) {
		os.Exit(install.Forward(os.Args))
	}
	host, clock, err := host.FromEnv(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "leasectl:", err)
		os.Exit(cli.ExitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	env := cli.Env{Stdout: os.Stdout, Stderr: os.Stderr, Clock: clock, Version: version}
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		os.Exit(cluster.Run(ctx, env, os.Args[1:]))
	}
	os.Exit(node.Run(ctx, env, store.DirsFromEnv(os.Getenv), host, os.Args[1:]))
}
