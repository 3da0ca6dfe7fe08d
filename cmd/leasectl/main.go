// leasectl inspects and manages the lease store of a node.
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
	"github.com/leasehold-cni/leasehold/pkg/env"
)

var version string // set at link time

func main() {
	node, err := env.Read(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "leasectl:", err)
		os.Exit(cli.ExitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	os.Exit(cli.Run(ctx, cli.Env{
		Stdout: os.Stdout, Stderr: os.Stderr,
		Dirs: node.Dirs, Host: node.Host, Clock: node.Clock, Version: env.Version(version),
		Plugin: strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-"),
	}, os.Args[1:]))
}
