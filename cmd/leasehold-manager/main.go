// leasehold-manager pins recreated pods to the nodes that have their addresses, names to agents
// what they should read, and serves PersistentPodState.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

var version = "(devel)" // set at link time

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, run, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
