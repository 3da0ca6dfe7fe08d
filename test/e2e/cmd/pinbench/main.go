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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/pinbench"
)

var (
	nodes    = flag.String("nodes", "6,300", "how many nodes are simulated; a table for each number")
	count    = flag.Int("recreations", 200, "how many pods are recreated in each mode")
	parallel = flag.Int("parallel", 2, "how many StatefulSets there are at a time")
	modes    = flag.String("modes", strings.Join(pinbench.Modes, ","), "the modes, separated by commas")
	short    = flag.Bool("short", false, "what CI runs: -nodes 6 -recreations 32 -modes reference,nominate")

	scale        = flag.Bool("scale", os.Getenv("SCALE") == "1", "instead: what the manager costs in a big cluster")
	scaleNodes   = flag.Int("scale-nodes", 5000, "its nodes")
	reservations = flag.Int("reservations", 50000, "its reservations")
	rate         = flag.Int("rate", 50, "admissions a second")
	lasting      = flag.Duration("for", time.Minute, "how long there are so many")
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: pinbench [flags] REPOSITORY")
		os.Exit(2)
	}
	if *short {
		*nodes, *count, *modes = "6", 32, "reference,nominate"
	}
	if err := run(ctx, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "pinbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, repo string) error {
	if *scale {
		var fine bool
		err := on(ctx, repo, func(b *pinbench.Bench) (err error) {
			fine, err = b.Scale(ctx, *scaleNodes, *reservations, *rate, *lasting)
			return err
		})
		if err == nil && !fine {
			err = errors.New("a goal was missed, as the lines above say")
		}
		return err
	}
	fine := true
	for field := range strings.SplitSeq(*nodes, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 2 {
			return fmt.Errorf("-nodes %s: want numbers from 2 on, separated by commas", *nodes)
		}
		err = on(ctx, repo, func(b *pinbench.Bench) error {
			ok, err := b.Recreations(ctx, n, *count, *parallel, strings.Split(*modes, ","))
			fine = fine && ok
			return err
		})
		if err != nil {
			return err
		}
	}
	if !fine {
		return errors.New("a pod did not start, or did not come back, as the lines above say")
	}
	return nil
}

// on measures on a control plane of its own.
func on(ctx context.Context, repo string, measure func(*pinbench.Bench) error) (err error) {
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
	return measure(b)
}
