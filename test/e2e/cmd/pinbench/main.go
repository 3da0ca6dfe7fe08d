// Pinbench measures the pin; see package pinbench.
//
//	pinbench [flags] REPOSITORY
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/pinbench"
)

var (
	nodes    = flag.Int("nodes", 6, "how many nodes are simulated")
	count    = flag.Int("recreations", 200, "how many pods are recreated in each mode")
	parallel = flag.Int("parallel", 2, "how many StatefulSets there are at a time")
	modes    = flag.String("modes", "nothing,reference,none,prefer,nominate,require", "the modes, separated by commas")
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: pinbench [flags] REPOSITORY")
		os.Exit(2)
	}
	if err := run(ctx, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "pinbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, repo string) (err error) {
	if repo, err = filepath.Abs(repo); err != nil {
		return err
	}
	dir, err := bed.Dir(repo)
	if err != nil {
		return err
	}
	b, err := pinbench.Start(ctx, repo, dir, os.Stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	fine, err := b.Recreations(ctx, *nodes, *count, *parallel, strings.Split(*modes, ","))
	if err == nil && !fine {
		err = errors.New("a pod did not start, or did not come back, as the lines above say")
	}
	return err
}
