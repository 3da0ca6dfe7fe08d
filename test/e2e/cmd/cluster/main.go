// Cluster manages the test cluster. See docs/testbed.md.
//
//	cluster REPOSITORY up|down|control|lone|reboot
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: cluster REPOSITORY up|down|control|lone|reboot")
		os.Exit(2)
	}
	if err := command(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, repo, verb string) error {
	repo, err := filepath.Abs(repo)
	if err != nil {
		return err
	}
	dir, err := cluster.Dir(repo)
	if err != nil {
		return err
	}
	o, err := cluster.OptionsFromEnv()
	if err != nil {
		return err
	}
	switch verb {
	case "up":
		b := cluster.New(repo, dir, o)
		if err := b.Up(ctx); err != nil {
			return err
		}
		printUsage(b)
		return nil
	case "down":
		return cluster.New(repo, dir, o).Down(ctx)
	case "control":
		b, err := cluster.NewBare(repo, dir)
		if err != nil {
			return err
		}
		b.Kubernetes = o.Kubernetes
		return b.UpControl(ctx)
	case "lone", "reboot":
		c, err := cluster.NewLone(repo, dir)
		if err != nil {
			return err
		}
		if verb == "lone" {
			return c.UpLone(ctx)
		}
		if c, err = cluster.Load(repo, c.Dir); err != nil {
			return err
		}
		return c.RebootLone(ctx)
	default:
		return fmt.Errorf("unknown command %q; want up, down, control, lone or reboot", verb)
	}
}

func printUsage(b *cluster.Cluster) {
	kubectl := b.Kubectl()
	fmt.Printf(`
The cluster is up: %d nodes, %s with leasehold.

    export KUBECONFIG=%s

Try:
    %s get nodes -o wide
    %s create -f %s/docs/examples/echoserver.yaml
    %s get pods -o wide -w
`, b.Nodes, b.CNI, b.Kubeconfig(), kubectl, kubectl, b.Repo, kubectl)
}
