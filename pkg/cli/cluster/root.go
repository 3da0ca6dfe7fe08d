package cluster

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
)

// cluster has the flags of the commands that are about a cluster. They read the API objects that
// the agents publish, which needs only the right to view them. Only history, bundle and a part of
// doctor run leasectl in the pods of the agents (docs/decisions.md, "The kubectl plugin reads
// objects").
type cluster struct {
	*cli.App
	kubeconfig string // path; "" for the default of kubectl
	context    string
	timeout    time.Duration // how long rollout waits
	namespace  string        // of pods, from --namespace; "" for all
	node       string        // "" for all
}

const (
	reservationKind = "ipreservations.ipam.leasehold.dev"
	poolKind        = "nodeaddresspools.ipam.leasehold.dev"
)

// Run executes one command line of the kubectl plugin and returns the exit code.
func Run(ctx context.Context, env cli.Env, args []string) int {
	c := &cluster{App: cli.New(env)}
	return c.Run(ctx, c.plugin(), args, func(error) string { return "" })
}

// plugin returns the command tree of `kubectl leasehold`.
func (c *cluster) plugin() *cobra.Command {
	root := &cobra.Command{
		Use:         "kubectl-leasehold",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl leasehold"},
		Short:       "Manage the addresses that leasehold keeps in a cluster",
		Long: `Find what is wrong, show which pods had an address, hold addresses for pods to come,
release addresses, and install and uninstall leasehold. All of it uses kubectl, with its
configuration and credentials. Which addresses are kept, and for whom, is in "kubectl
get ipr -A"; how many each node has, and whether it keeps them, is in "kubectl get nap".`,
	}
	f := root.PersistentFlags()
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "`path` of the kubeconfig file; if empty, kubectl's own")
	f.StringVar(&c.context, "context", "", "`name` of the kubeconfig's context")
	root.AddCommand(c.bundle(), c.doctor(), c.history(), c.install(), c.release(), c.reserve(), c.uninstall())
	return root
}

func (c *cluster) nodeFlag(command *cobra.Command) {
	command.Flags().StringVar(&c.node, "node", "", "only this node; if empty, all")
}

// reservations returns the IPReservations that the flags select and for which keep reports true.
func (c *cluster) reservations(ctx context.Context, keep func(object) bool) ([]object, error) {
	in := "--all-namespaces"
	if namespace := cmp.Or(c.namespace, c.InNamespace()); namespace != "" {
		in = "--namespace=" + namespace
	}
	list, err := c.items(ctx, reservationKind, in)
	return slices.DeleteFunc(list, func(r object) bool {
		return c.node != "" && nodeOf(r) != c.node || !keep(r) ||
			!c.Selects(namespaceOf(r), r.Text("spec", "podName"), r.Text("status", "reservation"),
				addressesOf(r)...)
	}), err
}

func addressesOf(reservation object) (all []string) {
	for _, a := range reservation.List("status", "addresses") {
		all = append(all, a.Text("address"))
	}
	return all
}

func isHeld(reservation object) bool { return reservation.Text("status", "state") == "Held" }

func (c *cluster) printReservations(all []object) error {
	const heads = "NAMESPACE POD NODE ADDRESSES STATE UNTIL FOR"
	return cli.PrintRows(c.App, all, heads, func(r object) []string {
		until := r.Text("status", "heldUntil")
		if isHeld(r) {
			until = cmp.Or(until, "forever")
		}
		return []string{namespaceOf(r), r.Text("spec", "podName"), nodeOf(r),
			strings.Join(addressesOf(r), ","), r.Text("status", "state"), until, r.Text("status", "reservation")}
	})
}
