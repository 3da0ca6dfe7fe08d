// Package scenarios tests leasehold in a real Kubernetes cluster. Each scenario is a subtest of the
// test that is named after the node it needs, or of TestCluster or TestInstall:
//
//	go test -v -parallel 4 -run /reboot ./scenarios
//
// The cluster is the running one of `make cluster`, or one that is started before the first
// scenario and stopped after the last one. See docs/testbed.md.
package scenarios

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// scenarios is the suite of this run.
var scenarios *suite

// The cluster-wide scenarios run one after the other, then those of each node in parallel to those
// of the others.
func TestCluster(t *testing.T) { scenarios.runGroup(t, 0) }
func TestInstall(t *testing.T) { scenarios.runGroup(t, installGroup) }
func TestNode1(t *testing.T)   { t.Parallel(); scenarios.runGroup(t, 1) }
func TestNode2(t *testing.T)   { t.Parallel(); scenarios.runGroup(t, 2) }
func TestNode3(t *testing.T)   { t.Parallel(); scenarios.runGroup(t, 3) }

func TestMain(m *testing.M) {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the process
	// go test does not wait for this process if it is terminated. The cluster has to be stopped
	// nevertheless.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "prctl:", err)
		os.Exit(1)
	}
	signal.Ignore(syscall.SIGPIPE)
	code, err := runOnCluster(ctx, m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// runOnCluster runs the tests on the running cluster or a temporary one, which only scenarios
// start.
func runOnCluster(ctx context.Context, m *testing.M) (code int, err error) {
	repo, err := filepath.Abs("../../..")
	if err != nil {
		return 1, err
	}
	dir, err := cluster.Dir(repo)
	if err != nil {
		return 1, err
	}
	o, err := cluster.OptionsFromEnv()
	if err != nil {
		return 1, err
	}
	limit := 20 * time.Minute
	soaks, err := soakDuration()
	if err != nil {
		return 1, err
	}
	table := table
	switch {
	case soaks != 0:
		table, limit = soakTable, soaks+30*time.Minute
	case os.Getenv(conformanceEnv) != "":
		table, limit = conformanceTable, 2*conformanceLimit+10*time.Minute
		o.Plain = true
	}
	table, left := fitting(table, o)
	r := &rig{}
	scenarios = &suite{ctx: ctx, rig: r, table: table, left: left, nodes: o.Nodes, limit: limit,
		failed: filepath.Join(dir, "failed")}
	scenarios.start = sync.OnceValue(func() error {
		if err := os.RemoveAll(scenarios.failed); err != nil {
			return err
		}
		if err := r.start(ctx, repo, dir, o); err != nil {
			return fmt.Errorf("the cluster cannot be used: %w", err)
		}
		return nil
	})
	began := time.Now()
	code = m.Run()
	defer func() { err = errors.Join(err, r.close(!scenarios.unclean)) }()
	if len(scenarios.results) == 0 {
		if pattern := flag.Lookup("test.run").Value.String(); code == 0 && strings.Contains(pattern, "/") {
			return 1, fmt.Errorf("-run %s: no scenario has such a name", pattern)
		}
		return code, nil
	}
	fmt.Println()
	found, passes := r.watch.Found()
	fmt.Printf("Every pod was inspected %d times: %d addresses were in two of them at once.\n\n", passes, len(found))
	scenarios.close(os.Stdout, time.Since(began))
	return code, nil
}

// acquire returns the running cluster if it has these options and is healthy, with the programs of
// this source tree, or starts one. release stops a cluster that acquire has started.
func acquire(ctx context.Context, repo, dir string, o cluster.Options) (b *cluster.Cluster, release func() error,
	err error) {
	b, err = cluster.Load(repo, dir)
	if err == nil && b.Options == o {
		err = b.Healthy(ctx)
	}
	if err == nil && b.Options == o {
		return b, func() error { return nil }, b.Refresh(ctx)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Println("the running cluster cannot be used:", err)
	}
	b = cluster.New(repo, dir, o)
	return b, func() error { return b.Down(context.WithoutCancel(ctx)) }, b.Up(ctx)
}
