package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/install"
)

const (
	agentName     = "leasehold-agent"
	managerName   = "leasehold-manager"
	partOf        = "app.kubernetes.io/part-of=leasehold"
	installerName = "install" // the init container of the agent's DaemonSet
)

// The resources of leasehold's cluster-scoped objects, except for CRDs.
const (
	webhookKinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
	clusterKinds = "validatingadmissionpolicybinding,validatingadmissionpolicy," + webhookKinds +
		",clusterrolebinding,clusterrole"
)

// uninstall returns the command that removes leasehold from this node.
func (a *app) uninstall() *cobra.Command {
	var cni cniFlags
	var dryRun bool
	var answer *os.File
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove leasehold from this node",
		Long: `Put host-local back into its place, name it in all configurations that name leasehold,
release the leases of dead sandboxes and all held addresses, and remove leasehold's
plugin, store and directories. Running pods keep their addresses. No agent may run on
the node.

First it checks everything that could prevent this; if something does, nothing is
changed. It can be repeated after an error.

"kubectl leasehold uninstall" does this on all nodes of a cluster.`,
		Example: "  leasectl uninstall --dry-run\n  leasectl uninstall",
		Args:    cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			// The kubelet copies the content of this file to the pod's status, where kubectl
			// leasehold uninstall reads it. Outside of a container there is none.
			answer, _ = os.OpenFile("/dev/termination-log", os.O_WRONLY|os.O_TRUNC, 0)
			return a.enter()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			runtime := cni.runtime()
			u := install.Uninstaller{Dir: install.DirOf(runtime.BinDirs), ConfDir: runtime.ConfDir,
				Service: a.service(), Host: a.Host, Log: slog.New(slog.NewTextHandler(a.Stderr, nil))}
			text, err := u.Run(cmd.Context(), dryRun)
			switch {
			case err != nil:
				text = err.Error()
			case text != "":
				a.step("%s", text)
			case dryRun:
				a.step("leasehold can be removed from this node")
			}
			_, _ = answer.WriteString(text) // nil outside of a container
			return err
		},
	}
	cni.register(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say whether that is possible, and change nothing")
	return c
}

// idle returns the command that keeps a pod running after it has removed leasehold from its node.
func idle() *cobra.Command {
	return &cobra.Command{Use: "idle", Hidden: true, Short: "Do nothing until a signal", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { <-cmd.Context().Done() }}
}

// uninstall returns the command of the kubectl plugin that removes leasehold from a cluster.
func (c *cluster) uninstall() *cobra.Command {
	var crds, keepObjects bool
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove leasehold from a cluster",
		Long: `Remove leasehold from a cluster, in the order in which no pod is left waiting and no
address is given twice: the webhooks, the manager, the configuration of flannel if it
names leasehold, the agents, the plugin on each node, everything else. On the nodes
nothing is left but host-local and its files. Running pods keep their addresses; held
addresses are released.

Every node is asked before anything is removed. If one cannot be uninstalled or does
not answer, nothing was removed, and the error names it. What each step waits for is
printed by node, for at most --timeout. It can be repeated after an error.

The CRDs and with them all IPReservations and PersistentPodStates stay, unless
--crds is set.

With --keep-objects it ends when the nodes are done; "helm uninstall", which calls it so
before it removes the objects, does the rest.`,
		Example: "  kubectl leasehold uninstall\n  kubectl leasehold uninstall --crds",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.leave(cmd.Context(), crds, keepObjects)
		},
	}
	c.timeoutFlag(command)
	f := command.Flags()
	f.BoolVar(&crds, "crds", false, "remove the CRDs too, with all their objects")
	f.BoolVar(&keepObjects, "keep-objects", false,
		"remove the plugin, the webhooks and the workloads, and leave all other objects to Helm")
	command.MarkFlagsMutuallyExclusive("crds", "keep-objects")
	return command
}

// leave removes leasehold from a cluster. The steps are in one function because their order
// matters: each step must succeed before the next one begins. Otherwise pods might be pinned that
// nobody replaces if their node does not accept them, or nodes might be without a plugin.
func (c *cluster) leave(ctx context.Context, crds, keepObjects bool) error {
	agent, err := c.own(ctx, "daemonset", agentName)
	if err != nil {
		return err
	}
	if agent == nil {
		return fmt.Errorf("there is no DaemonSet %s in namespace %s; if it was deleted by hand, apply it again first: "+
			"the nodes still have the plugin", agentName, c.system)
	}
	undo, err := c.changeFlannel(ctx, cniconf.WithoutLeasehold)
	if err != nil {
		return fmt.Errorf("nothing was removed: %w", err)
	}
	if !isUninstaller(agent.In("spec", "template")) {
		c.step("asking every node, before anything is removed")
		if err := c.askNodes(ctx, agent); err != nil {
			return err
		}
	}
	c.step("removing the webhooks and the manager")
	if err := c.delete(ctx, webhookKinds, "-l", partOf); err != nil {
		return err
	}
	if err := c.delete(ctx, "-n", c.system, "deployment", managerName, "--cascade=foreground",
		c.limit()); err != nil {
		return err
	}
	if undo.before != undo.after {
		c.step("naming host-local in flannel's configuration, and restarting its pods")
		if err := c.writeFlannel(ctx, undo); err != nil {
			return err
		}
	}
	c.step("removing the agents, and the plugin from the nodes")
	if err := c.cleanNodes(ctx, agent); err != nil || keepObjects {
		return err
	}
	return c.removeObjects(ctx, crds)
}

// step prints what a command does next, or a line of its result.
func (a *app) step(format string, args ...any) { fmt.Fprintf(a.Stdout, format+"\n", args...) }

// limit is the flag of kubectl that limits the time of a step.
func (c *cluster) limit() string { return "--timeout=" + c.timeout.String() }

// removeObjects removes everything of leasehold that is left in a cluster, the CRDs only if crds is
// set.
func (c *cluster) removeObjects(ctx context.Context, crds bool) error {
	c.step("removing everything else")
	// None of them has a finalizer. To wait for each would take kubectl longer than anything else.
	if err := c.delete(ctx, clusterKinds, "-l", partOf, "--wait=false"); err != nil {
		return err
	}
	if err := c.delete(ctx, "namespace", c.system, c.limit()); err != nil {
		return err
	}
	if !crds {
		c.step("the CRDs and their objects are left; --crds removes them")
		return nil
	}
	return c.delete(ctx, "crd", "-l", partOf, c.limit())
}
