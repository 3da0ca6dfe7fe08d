package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// cluster has the flags of the commands that are about a cluster. They read the API objects that
// the agents publish, which needs only the right to view them. Only history, bundle and a part of
// doctor run leasectl in the pods of the agents (docs/decisions.md, "The kubectl plugin reads
// objects").
type cluster struct {
	*app
	kubeconfig string // path; "" for the default of kubectl
	context    string
	system     string        // the namespace of leasehold
	timeout    time.Duration // how long rollout waits
	namespace  string        // of pods, from --namespace; "" for all
	node       string        // "" for all
}

const (
	reservationKind = "ipreservations.ipam.leasehold.dev"
	poolKind        = "nodeaddresspools.ipam.leasehold.dev"
)

// plugin returns the command tree of `kubectl leasehold`.
func (a *app) plugin() *cobra.Command {
	root := &cobra.Command{
		Use:         "kubectl-leasehold",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl leasehold"},
		Short:       "Manage the addresses that leasehold keeps in a cluster",
		Long: `Find what is wrong, show which pods had an address, hold addresses for pods to come,
release those of pods that are away, and install and uninstall leasehold. All of it uses kubectl, with its
configuration and credentials. Which addresses are kept, and for whom, is in "kubectl
get ipr -A"; how many each node has, and whether it keeps them, is in "kubectl get nap".`,
	}
	c := &cluster{app: a}
	f := root.PersistentFlags()
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "`path` of the kubeconfig file; if empty, kubectl's own")
	f.StringVar(&c.context, "context", "", "`name` of the kubeconfig's context")
	f.StringVar(&c.system, "system-namespace", "leasehold-system", "namespace of leasehold")
	root.AddCommand(c.bundle(), c.doctor(), c.history(), c.install(), c.release(), c.reserve(), c.uninstall())
	return root
}

func (c *cluster) nodeFlag(command *cobra.Command) {
	command.Flags().StringVar(&c.node, "node", "", "only this node; if empty, all")
}

// reservations returns the IPReservations that the flags select and for which keep reports true.
func (c *cluster) reservations(ctx context.Context, keep func(object) bool) ([]object, error) {
	in := "--all-namespaces"
	if c.namespace != "" {
		in = "--namespace=" + c.namespace
	}
	list, err := c.get(ctx, reservationKind, in)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.List("items"), func(r object) bool {
		return c.node != "" && nodeOf(r) != c.node || !keep(r) ||
			!c.selects(namespaceOf(r), r.Text("spec", "podName"), r.Text("status", "reservation"),
				addressesOf(r)...)
	}), nil
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
	return printRows(c.app, all, heads, func(r object) []string {
		until := r.Text("status", "heldUntil")
		if isHeld(r) {
			until = cmp.Or(until, "forever")
		}
		return []string{namespaceOf(r), r.Text("spec", "podName"), nodeOf(r),
			strings.Join(addressesOf(r), ","), r.Text("status", "state"), until, r.Text("status", "reservation")}
	})
}

func (c *cluster) doctor() *cobra.Command {
	var nodes bool
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong in the cluster, and how to repair it",
		Long: `Check leasehold's objects, policies, webhooks and pods, the annotations of workloads,
and each node as "leasectl doctor" does there. Each finding says what was found and
what it leads to. It has a command that repairs it if running that can do no harm;
otherwise it says what there is to decide. Nothing is changed.
Nodes are checked in the pods of their agents, which needs the right to create
pods/exec in leasehold's namespace; --nodes=false does without.

The exit status is 0 if nothing was found, 1 if something was, and 2 if nothing was
found but something could not be checked.`,
		Example: "  kubectl leasehold doctor\n  kubectl leasehold doctor --nodes=false -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.printReport(c.examine(cmd.Context(), nodes))
		},
	}
	c.outputFlag(command)
	command.Flags().BoolVar(&nodes, "nodes", true, "examine each node too")
	return command
}
