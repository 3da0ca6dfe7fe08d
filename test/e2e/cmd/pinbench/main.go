// Pinbench measures the pin. See package pinbench.
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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/pinbench"
)

var (
	nodes    = flag.String("nodes", "6,300", "numbers of simulated nodes, separated by commas; each gets a table")
	count    = flag.Int("recreations", 200, "number of recreated pods per mode")
	parallel = flag.Int("parallel", 2, "number of concurrent StatefulSets")
	modes    = flag.String("modes", strings.Join(pinbench.Modes, ","), "modes, separated by commas")
	short    = flag.Bool("short", false, "-nodes 6 -recreations 32 -modes reference,require")

	faults = flag.String("faults", "",
		"instead, create pods with injected faults: a `regexp` of rbac, stalled, dead, slow, killed")
	faultsRate = flag.Int("faults-rate", 20, "pods per second for -faults")
	faultsFor  = flag.Duration("faults-for", 20*time.Second, "duration of each fault for -faults")

	attacks = flag.String("attacks", "",
		"instead, try the attacks of SECURITY.md on a manager and an agent whose names match a `regexp`")

	attackMiB = flag.Int("attack-mib", pinbench.AttackMiB,
		"how much text each attack on the manager's memory writes, for -attacks")

	frozen    = flag.Int("frozen", 0, "instead, recreate this `number` of pods while the scheduler is frozen")
	frozenFor = flag.Duration("frozen-for", time.Minute, "how long it is frozen for -frozen")

	agents = flag.Int("agents", 0,
		"instead, measure what leasehold costs the API server with this `number` of nodes and simulated agents")
	managers = flag.Int("managers", 0,
		"instead, measure the managers with this `number` of reservations and -scale-nodes nodes, without agents")
	managersPods = flag.Bool("managers-pods", true, "four fifths of the reservations have pods for -managers")
	podsPerNode  = flag.Int("pods-per-node", 10, "number of reservations of each node for -agents")
	recreated    = flag.Int("recreated", 5, "recreations per second for -agents")
	window       = flag.Duration("window", 15*time.Second, "duration of each kind of recreations for -agents")
	rounds       = flag.Int("rounds", 3, "number of windows of each kind for -agents")
	settle       = flag.Duration("settle", 75*time.Second, "how long the agents run before the measurement for -agents")
	accidents    = flag.String("accidents", "zone,manager,outage,upgrade,start",
		"accidents that are measured too for -agents, separated by commas")
	outage    = flag.Duration("outage", time.Minute, "how long the API server is away for -agents")
	simulated = flag.String("simulated", "", "`directory` of the source of the simulated agents for -agents")
	files     = flag.String("files", "/dev/shm", "`directory` of the nodes' stores, 4 MiB each, for -agents")

	scale = flag.Bool("scale", os.Getenv("SCALE") == "1",
		"measure the manager's cost in a large cluster instead")
	scaleNodes   = flag.Int("scale-nodes", 5000, "number of nodes for -scale and -managers")
	reservations = flag.Int("reservations", 50000, "number of reservations for -scale")
	rate         = flag.Int("rate", 50, "admissions per second for -scale")
	lasting      = flag.Duration("for", time.Minute, "duration of the admissions for -scale")
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	flag.Parse()
	log.SetLogger(logr.Discard()) // of controller-runtime, which complains after 30 s without one
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: pinbench [flags] REPOSITORY")
		os.Exit(2)
	}
	if *short {
		*nodes, *count, *modes = "6", 32, "reference,require"
	}
	if err := run(ctx, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "pinbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, repo string) error {
	if *faults != "" {
		match, err := regexp.Compile(*faults)
		if err != nil {
			return fmt.Errorf("-faults: %w", err)
		}
		return goalsOn(ctx, repo, func(b *pinbench.Bench) (bool, error) {
			return b.Faults(ctx, match, *faultsRate, *faultsFor)
		})
	}
	if *attacks != "" {
		match, err := regexp.Compile(*attacks)
		if err != nil {
			return fmt.Errorf("-attacks: %w", err)
		}
		pinbench.AttackMiB = *attackMiB
		return on(ctx, repo, func(b *pinbench.Bench) error { return b.Attacks(ctx, match) })
	}
	if *frozen > 0 {
		return goalsOn(ctx, repo, func(b *pinbench.Bench) (bool, error) { return b.Frozen(ctx, *frozen, *frozenFor) })
	}
	if *scale {
		return goalsOn(ctx, repo, func(b *pinbench.Bench) (bool, error) {
			return b.Scale(ctx, *scaleNodes, *reservations, *rate, *lasting)
		})
	}
	if *managers > 0 {
		return on(ctx, repo, func(b *pinbench.Bench) error {
			return b.Managers(ctx, *scaleNodes, *managers, *managersPods)
		})
	}
	if *agents > 0 {
		return onControl(ctx, repo, true, func(b *pinbench.Bench) error {
			return b.Cost(ctx, pinbench.CostOptions{Nodes: *agents, PodsPerNode: *podsPerNode, Rate: *recreated,
				Window: *window, Rounds: *rounds, Simulated: *simulated, Files: *files, Settle: *settle,
				Accidents: strings.Split(*accidents, ","), Outage: *outage})
		})
	}
	fine := true
	for field := range strings.SplitSeq(*nodes, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 2 {
			return fmt.Errorf("-nodes %s: want numbers of at least 2, separated by commas", *nodes)
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
		return errors.New("a pod did not start or did not return, see above")
	}
	return nil
}

// goalsOn is like on, and returns an error if a goal was missed.
func goalsOn(ctx context.Context, repo string, measure func(*pinbench.Bench) (bool, error)) error {
	var fine bool
	err := on(ctx, repo, func(b *pinbench.Bench) (err error) {
		fine, err = measure(b)
		return err
	})
	if err == nil && !fine {
		err = errors.New("a goal was missed, see above")
	}
	return err
}

// on starts a control plane, calls measure, and stops it.
func on(ctx context.Context, repo string, measure func(*pinbench.Bench) error) (err error) {
	return onControl(ctx, repo, false, measure)
}

// onControl is on, with an API server that logs requests if audited is true.
func onControl(ctx context.Context, repo string, audited bool, measure func(*pinbench.Bench) error) (err error) {
	if repo, err = filepath.Abs(repo); err != nil {
		return err
	}
	dir, err := cluster.Dir(repo)
	if err != nil {
		return err
	}
	b, err := pinbench.Start(ctx, repo, dir, audited, os.Stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	return measure(b)
}
