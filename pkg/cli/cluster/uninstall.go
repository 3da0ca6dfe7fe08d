package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
)

const (
	partOf        = "app.kubernetes.io/part-of=leasehold"
	installerName = "install" // the init container of the agent's DaemonSet
)

// The resources of leasehold's cluster-scoped objects, except for CRDs.
const (
	webhookKinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
	clusterKinds = "validatingadmissionpolicybinding,validatingadmissionpolicy," + webhookKinds +
		",clusterrolebinding,clusterrole"
)

// uninstall returns the command of the kubectl plugin that removes leasehold from a cluster.
func (c *cluster) uninstall() *cobra.Command {
	var crds, keepObjects, dryRun bool
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove leasehold from a cluster",
		Long: `Remove leasehold from a cluster, in the order in which no pod is left waiting and no
address is given twice: the webhooks, the manager, the configuration of flannel if it
names leasehold, the agents, the plugin on each node, what the agents have published,
everything else. Running pods keep their addresses; held addresses are released.

Every node is asked before anything is removed. If one cannot be uninstalled or does
not answer, nothing was removed, and the error names it. Then the command shows what
it will do on each node, which addresses are lost, and what stays, and asks. What each
step waits for is printed by node, for at most --timeout. It can be repeated after an
error.

The CRDs, AddressRequests and PersistentPodStates stay, unless --crds is set.

With --keep-objects it ends when the nodes are done; "helm uninstall", which calls it so
before it removes the objects, does the rest.`,
		Example: "  kubectl leasehold uninstall --dry-run\n  kubectl leasehold uninstall\n" +
			"  kubectl leasehold uninstall --crds --yes",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			agent, undo, err := c.planRemoval(cmd.Context(), crds)
			if err != nil || dryRun {
				return err
			}
			if err := c.Agree(cmd, "Remove leasehold from the cluster?"); err != nil {
				return err
			}
			return c.leave(cmd.Context(), agent, undo, crds, keepObjects)
		},
	}
	c.timeoutFlag(command)
	c.YesFlag(command)
	f := command.Flags()
	f.BoolVar(&crds, "crds", false, "remove the CRDs too, with all their objects")
	f.BoolVar(&keepObjects, "keep-objects", false,
		"remove the plugin, the webhooks and the workloads, and leave all other objects to Helm")
	f.BoolVar(&dryRun, "dry-run", false, "show what would be done, and change nothing")
	command.MarkFlagsMutuallyExclusive("crds", "keep-objects")
	return command
}

// planRemoval returns what leave removes, and shows it: the DaemonSet of the agents, and the change
// of flannel's configuration. It returns an error if leasehold cannot be removed from all nodes.
func (c *cluster) planRemoval(ctx context.Context, crds bool) (agent object, undo flannelChange, err error) {
	if agent, err = c.own(ctx, "daemonset", cli.AgentName); err != nil {
		return nil, undo, err
	}
	if agent == nil {
		return nil, undo, fmt.Errorf("there is no DaemonSet %s in namespace %s; if it was deleted by hand, apply it "+
			"again first: the nodes still have the plugin", cli.AgentName, cli.Namespace)
	}
	if undo, err = c.changeFlannel(ctx, cniconf.WithoutLeasehold); err != nil {
		return nil, undo, fmt.Errorf("nothing was removed: %w", err)
	}
	if isUninstaller(agent.In("spec", "template")) {
		c.Step("a former call has begun to remove leasehold, and this one continues")
	} else if err := c.askNodes(ctx, agent); err != nil {
		return nil, undo, err
	}
	if undo.before != undo.after {
		c.Step("%s names host-local, and flannel's pods are restarted", "ConfigMap "+flannelConfig)
	}
	c.Step("the webhooks, the manager, the agents and all that they have published are removed")
	if !crds {
		c.Step("the CRDs, AddressRequests and PersistentPodStates stay; --crds removes them")
		return agent, undo, nil
	}
	kinds, err := c.kinds(ctx)
	for _, kind := range kinds {
		all, e := c.items(ctx, kind, "--all-namespaces")
		err = errors.Join(err, e)
		c.Step("the CRD %s is removed, with its objects: %d", kind, len(all))
	}
	return agent, undo, err
}

// kinds returns the names of leasehold's CRDs.
func (c *cluster) kinds(ctx context.Context) (names []string, err error) {
	crds, err := c.items(ctx, "crd", "-l", partOf)
	for _, crd := range crds {
		names = append(names, nameOf(crd))
	}
	return names, err
}

// leave removes leasehold from a cluster. The steps are in one function because their order
// matters: each step must succeed before the next one begins. Otherwise pods might be pinned that
// nobody replaces if their node does not accept them, or nodes might be without a plugin.
func (c *cluster) leave(ctx context.Context, agent object, undo flannelChange, crds,
	keepObjects bool) error {
	c.Step("removing the webhooks and the manager")
	if err := c.delete(ctx, webhookKinds, "-l", partOf); err != nil {
		return err
	}
	if err := c.delete(ctx, "-n", cli.Namespace, "deployment", cli.ManagerName, "--cascade=foreground",
		c.limit()); err != nil {
		return err
	}
	if undo.before != undo.after {
		c.Step("naming host-local in flannel's configuration, and restarting its pods")
		if err := c.writeFlannel(ctx, undo); err != nil {
			return err
		}
	}
	c.Step("removing the agents, and the plugin from the nodes")
	if err := c.cleanNodes(ctx, agent); err != nil {
		return err
	}
	c.Step("removing what the agents have published")
	kinds, err := c.kinds(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{poolKind, reservationKind} {
		if !slices.Contains(kinds, kind) {
			continue
		}
		if err := c.delete(ctx, kind, "--all", "--all-namespaces", "--wait=false"); err != nil {
			return err
		}
	}
	if keepObjects {
		return nil
	}
	return c.removeObjects(ctx, crds)
}

// limit is the flag of kubectl that limits the time of a step.
func (c *cluster) limit() string { return "--timeout=" + c.timeout.String() }

// removeObjects removes everything of leasehold that is left in a cluster, the CRDs only if crds is
// set.
func (c *cluster) removeObjects(ctx context.Context, crds bool) error {
	c.Step("removing everything else")
	// None of them has a finalizer. To wait for each would take kubectl longer than anything else.
	if err := c.delete(ctx, clusterKinds, "-l", partOf, "--wait=false"); err != nil {
		return err
	}
	if crds {
		if err := c.delete(ctx, "crd", "-l", partOf, c.limit()); err != nil {
			return err
		}
	}
	// Without the DaemonSet in it this command cannot be repeated.
	return c.delete(ctx, "namespace", cli.Namespace, c.limit())
}
