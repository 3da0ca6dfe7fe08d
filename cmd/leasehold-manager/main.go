// leasehold-manager brings recreated pods back to the nodes that have their addresses.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/leasehold-cni/leasehold/pkg/env"
)

var version string // set at link time

// Exit codes.
const (
	exitFailed = 1 // it could not start, or failed; standard error has the reason
	exitUsage  = 2 // invalid arguments or flags
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "leasehold-manager:", err)
		os.Exit(exitUsage)
	case o.version:
		fmt.Println("leasehold-manager", env.Version(version))
		return
	}
	if err := run(ctx, o, env.Version(version)); err != nil {
		fmt.Fprintln(os.Stderr, "leasehold-manager:", err)
		os.Exit(exitFailed)
	}
}
