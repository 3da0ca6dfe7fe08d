package pinbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/fleet"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// Bench is a running control plane for measurements.
type Bench struct {
	cluster *cluster.Cluster
	api     *rest.Config
	client  *kubernetes.Clientset
	plugin  string
	out     io.Writer
	began   time.Time

	manager func(i int) machine.Start // how a replica is started
	// managerRestarts is whether a replica that exits is started again, as by a kubelet.
	managerRestarts bool
	managerFlags    []string // further flags of a replica
}

// podNetwork is a shared address space (RFC 6598), so that no namespace of the host has addresses
// of it.
var podNetwork = netip.MustParsePrefix("100.64.0.0/10")

const (
	heartbeat = 30 * time.Second
	nodeGrace = 3 * time.Minute // 300 nodes share a machine with all else, and must not be lost over that
)

// Start builds the programs and starts a control plane in the cluster's directory. Close stops it.
// If audited is true, the API server logs the requests of leasehold's accounts.
func Start(ctx context.Context, repo, dir string, audited bool, out io.Writer) (*Bench, error) {
	b, err := cluster.NewBare(repo, dir)
	if err != nil {
		return nil, err
	}
	b.NodeGrace = nodeGrace
	if audited {
		b.AuditPolicy = filepath.Join(b.Dir, "audit.yaml")
		if err := os.WriteFile(b.AuditPolicy, []byte(auditPolicy), 0o644); err != nil {
			return nil, err
		}
	}
	bench := &Bench{cluster: b, out: out, began: time.Now()}
	if bench.plugin, err = b.Build(ctx, cluster.Program{Module: ".", Package: "plugins/ipam/leasehold"}); err != nil {
		return nil, err
	}
	if err := b.UpControl(ctx); err != nil {
		return nil, err
	}
	if err := bench.connect(ctx); err != nil {
		return nil, errors.Join(err, bench.Close(ctx))
	}
	return bench, nil
}

func (b *Bench) connect(ctx context.Context) (err error) {
	if b.api, err = clientcmd.BuildConfigFromFlags("", b.cluster.Kubeconfig()); err != nil {
		return err
	}
	b.api.QPS = -1
	if b.client, err = kubernetes.NewForConfig(b.api); err != nil {
		return err
	}
	return b.applyProduct(ctx)
}

// Close removes the control plane and its data, except the logs.
func (b *Bench) Close(ctx context.Context) error {
	kept := filepath.Join(b.cluster.Dir, "logs")
	return errors.Join(os.RemoveAll(kept), os.Rename(b.cluster.Scratch("logs"), kept),
		b.cluster.Down(context.WithoutCancel(ctx)))
}

func (b *Bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "%5.0fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// startFleet registers count simulated nodes, and watches their pods until stop is called.
func (b *Bench) startFleet(ctx context.Context, count int) (f *fleet.Fleet, pods *tracker, stop func() error,
	err error) {
	ctx, cancel := context.WithCancel(ctx)
	dir := b.cluster.Scratch("fleet")
	log, err := os.Create(b.cluster.Log("host", "fleet"))
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	stop = func() error {
		cancel()
		if f != nil {
			f.Wait()
		}
		return errors.Join(os.RemoveAll(dir), log.Close())
	}
	f, err = fleet.New(fleet.Config{API: b.api, Plugin: b.plugin, Dir: dir, Network: podNetwork,
		Heartbeat: heartbeat, Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err == nil {
		b.say("registering %d nodes", count)
		err = f.Start(ctx, nodes(count))
	}
	if err == nil {
		pods, err = track(ctx, b.client)
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, stop())
	}
	return f, pods, stop, nil
}

// Recreations recreates pods in each mode on a fleet of nodeCount nodes, and prints the table. It
// returns false if a pod is stuck with the manager, or did not return with the mode require.
func (b *Bench) Recreations(ctx context.Context, nodeCount, count, parallel int,
	modes []string) (fine bool, err error) {
	f, pods, stop, err := b.startFleet(ctx, nodeCount)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	r := &recreator{client: b.client, fleet: f, pods: pods, parallel: parallel}
	table := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, header)
	fine = true
	started := false
	for _, mode := range modes {
		if needsManager(mode) && !started {
			if err := b.startManager(ctx); err != nil {
				return false, err
			}
			started = true
			defer func() { err = errors.Join(err, b.stopManager(ctx)) }()
		}
		b.say("%s: %d recreations on %d nodes", mode, count, nodeCount)
		trials, err := r.mode(ctx, mode, count)
		if err != nil {
			return false, fmt.Errorf("%s: %w", mode, err)
		}
		row(table, mode, trials)
		fine = b.verdict(mode, trials) && fine
	}
	fmt.Fprintf(b.out, "\n%d nodes; %s has a PreferNoSchedule taint, most of its processors requested, "+
		"siblings, and no image:\n\n", nodeCount, hot)
	return fine, table.Flush()
}

// verdict reports whether all trials succeeded, and prints those that did not.
func (b *Bench) verdict(mode string, trials []trial) bool {
	fine := true
	for _, t := range trials {
		if t.stuck || mode == "require" && (!t.sameNode || !t.sameAddress) {
			fine = false
			b.say("%s: %s", mode, t.why)
		}
	}
	return fine
}
