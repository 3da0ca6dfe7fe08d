package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

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
	var dryRun, yes bool
	var answer *os.File
	var self []byte
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove leasehold from this node",
		Long: `Put host-local back into its place, name it in all configurations that name leasehold,
release the leases of dead sandboxes and all held addresses, and remove leasehold's
plugin, store and directories. Running pods keep their addresses. No agent may run on
the node.

It shows what it will do, which addresses are lost, and what stays, and asks. Before
that it checks everything that could prevent it; if something does, nothing is changed.
It can be repeated after an error.

"kubectl leasehold uninstall" does this on all nodes of a cluster.`,
		Example: "  leasectl uninstall --dry-run\n  leasectl uninstall",
		Args:    cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			// The kubelet copies the content of this file to the pod's status, where kubectl
			// leasehold uninstall reads it. Outside of a container there is none.
			answer, _ = os.OpenFile("/dev/termination-log", os.O_WRONLY|os.O_TRUNC, 0)
			path, err := os.Executable()
			if err == nil {
				self, err = os.ReadFile(path)
			}
			if err != nil {
				return err
			}
			return a.enter()
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			runtime := cni.runtime()
			if a.output != "" && !dryRun {
				return usage("-o needs --dry-run")
			}
			u := install.Uninstaller{Dir: install.DirOf(runtime.BinDirs), ConfDir: runtime.ConfDir, Forwarder: self,
				Service: a.service(), Host: a.Host, Log: slog.New(slog.NewTextHandler(a.Stderr, nil))}
			text := ""
			defer func() {
				if err != nil {
					text = err.Error()
				}
				_, _ = answer.WriteString(text) // nil outside of a container
			}()
			plan, err := u.Plan(cmd.Context())
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.printJSON(plan)
			}
			if a.step("- %s", strings.Join(plan.Steps, "\n- ")); dryRun {
				return nil
			}
			if err := a.agree(cmd, yes, "Remove leasehold from this node?"); err != nil {
				return err
			}
			if text, err = u.Run(cmd.Context(), plan); err == nil {
				a.step("leasehold is removed from this node\n%s", text)
			}
			return err
		},
	}
	cni.register(c)
	a.outputFlag(c)
	f := c.Flags()
	f.BoolVar(&dryRun, "dry-run", false, "show what would be done, and change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// agree returns an error unless yes is set, or the user answers the question with yes.
func (a *app) agree(cmd *cobra.Command, yes bool, question string) error {
	if yes || a.ask(cmd.InOrStdin(), question) {
		return nil
	}
	return errors.New("the answer was not yes; --yes does not ask")
}

// idle returns the command that keeps a pod running after it has removed leasehold from its node.
func idle() *cobra.Command {
	return &cobra.Command{Use: "idle", Hidden: true, Short: "Do nothing until a signal", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { <-cmd.Context().Done() }}
}

// uninstall returns the command of the kubectl plugin that removes leasehold from a cluster.
func (c *cluster) uninstall() *cobra.Command {
	var crds, keepObjects, dryRun, yes bool
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
			r, err := c.planRemoval(cmd.Context(), crds)
			if err != nil || dryRun {
				return err
			}
			if err := c.agree(cmd, yes, "Remove leasehold from the cluster?"); err != nil {
				return err
			}
			return c.leave(cmd.Context(), r, crds, keepObjects)
		},
	}
	c.timeoutFlag(command)
	f := command.Flags()
	f.BoolVar(&crds, "crds", false, "remove the CRDs too, with all their objects")
	f.BoolVar(&keepObjects, "keep-objects", false,
		"remove the plugin, the webhooks and the workloads, and leave all other objects to Helm")
	f.BoolVar(&dryRun, "dry-run", false, "show what would be done, and change nothing")
	f.BoolVar(&yes, "yes", false, "do not ask")
	command.MarkFlagsMutuallyExclusive("crds", "keep-objects")
	return command
}

// removal is what is removed from a cluster: the DaemonSet of the agents, and the change of
// flannel's configuration.
type removal struct {
	agent object
	undo  flannelChange
}

// planRemoval returns what leave removes, and shows it. It returns an error if leasehold cannot be
// removed from all nodes.
func (c *cluster) planRemoval(ctx context.Context, crds bool) (r removal, err error) {
	if r.agent, err = c.own(ctx, "daemonset", agentName); err != nil {
		return r, err
	}
	if r.agent == nil {
		return r, fmt.Errorf("there is no DaemonSet %s in namespace %s; if it was deleted by hand, apply it again "+
			"first: the nodes still have the plugin", agentName, c.system)
	}
	if r.undo, err = c.changeFlannel(ctx, cniconf.WithoutLeasehold); err != nil {
		return r, fmt.Errorf("nothing was removed: %w", err)
	}
	if isUninstaller(r.agent.In("spec", "template")) {
		c.step("a former call has begun to remove leasehold, and this one continues")
	} else if err := c.askNodes(ctx, r.agent); err != nil {
		return r, err
	}
	if r.undo.before != r.undo.after {
		c.step("%s names host-local, and flannel's pods are restarted", "ConfigMap "+flannelConfig)
	}
	c.step("the webhooks, the manager, the agents and all that they have published are removed")
	if !crds {
		c.step("the CRDs, AddressRequests and PersistentPodStates stay; --crds removes them")
		return r, nil
	}
	kinds, err := c.kinds(ctx)
	for _, kind := range kinds {
		all, e := c.items(ctx, kind, "--all-namespaces")
		err = errors.Join(err, e)
		c.step("the CRD %s is removed, with its objects: %d", kind, len(all))
	}
	return r, err
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
func (c *cluster) leave(ctx context.Context, r removal, crds, keepObjects bool) error {
	c.step("removing the webhooks and the manager")
	if err := c.delete(ctx, webhookKinds, "-l", partOf); err != nil {
		return err
	}
	if err := c.delete(ctx, "-n", c.system, "deployment", managerName, "--cascade=foreground",
		c.limit()); err != nil {
		return err
	}
	if r.undo.before != r.undo.after {
		c.step("naming host-local in flannel's configuration, and restarting its pods")
		if err := c.writeFlannel(ctx, r.undo); err != nil {
			return err
		}
	}
	c.step("removing the agents, and the plugin from the nodes")
	if err := c.cleanNodes(ctx, r.agent); err != nil {
		return err
	}
	c.step("removing what the agents have published")
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
		return nil
	}
	return c.delete(ctx, "crd", "-l", partOf, c.limit())
}
