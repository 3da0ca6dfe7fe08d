package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/kubectl"
)

const (
	agentName     = "leasehold-agent"
	managerName   = "leasehold-manager"
	uninstallName = "leasehold-uninstall"
	partOf        = "app.kubernetes.io/part-of=leasehold"
	managedBy     = "app.kubernetes.io/managed-by=leasehold" // the label of CRDs that the manager has created
	installerName = "install"                                // the init container of the agent's DaemonSet
)

// clusterKinds are the resources of leasehold's cluster-scoped objects, except for CRDs.
var clusterKinds = []string{
	"validatingadmissionpolicybinding", "validatingadmissionpolicy", "mutatingwebhookconfiguration",
	"validatingwebhookconfiguration", "clusterrolebinding", "clusterrole",
}

func (a *app) uninstall() *cobra.Command {
	k := kubectl.Client{Timeout: 10 * time.Minute}
	var crds, keepObjects bool
	var conf string
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove leasehold from a cluster, or from a configuration of this node",
		Long: `Remove leasehold from a cluster, with kubectl, in the order in which no pod is left
waiting and no address is given twice: the webhooks, the manager, the configuration
of flannel if it names leasehold, the agents, the plugin on each node, everything
else. On the nodes nothing is left but host-local and its files. Running pods keep
their addresses; held addresses are released.

Every node is asked before anything is removed. If one cannot be uninstalled or does
not answer, nothing was removed, and the error names it. What each step waits for is
printed by node, for at most --timeout. It can be repeated after an error.

Configurations that name leasehold name host-local again: what "leasectl install" has
changed is what it was, and what was edited by hand is kept beside the file, as
<file>.before-uninstall.

The CRDs and with them all IPReservations and PersistentPodStates stay, unless
--crds is set.

With --keep-objects it ends when the nodes are done; "helm uninstall", which calls it so
before it removes the objects, does the rest.

With --conf it only puts back a configuration of this node.`,
		Example: "  leasectl uninstall\n  kubectl leasehold uninstall --crds\n" +
			"  leasectl uninstall --conf /etc/cni/net.d/10-bridge.conflist",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if conf != "" {
				return a.restoreFile(conf)
			}
			if keepObjects && crds {
				return usage("--keep-objects and --crds exclude each other")
			}
			return a.leave(cmd.Context(), &k, crds, keepObjects)
		},
	}
	k.AddFlags(c.Flags())
	waitFlags(c, &k)
	c.Flags().BoolVar(&crds, "crds", false, "remove the CRDs too, with all their objects")
	c.Flags().BoolVar(&keepObjects, "keep-objects", false,
		"remove the plugin, the webhooks and the workloads, and leave all other objects to Helm")
	c.Flags().StringVar(&conf, "conf", "", "`path` of a CNI configuration of this node")
	return c
}

// leave removes leasehold from a cluster. The steps are in one function because their order
// matters: each step must succeed before the next one begins. Otherwise pods might be pinned that
// nobody replaces if their node does not accept them, or nodes might be without a plugin.
func (a *app) leave(ctx context.Context, k *kubectl.Client, crds, keepObjects bool) error {
	agent, err := k.Get(ctx, "-n", k.Namespace, "daemonset", agentName)
	if err != nil {
		return err
	}
	if begun, err := hasBegun(ctx, k); err != nil || agent == nil && !begun {
		if err != nil {
			return err
		}
		return fmt.Errorf("there is no DaemonSet %s in namespace %s; if it was deleted by hand, apply it again first: "+
			"the nodes still have the plugin", agentName, k.Namespace)
	}
	undo, err := undoFlannel(ctx, k)
	if err != nil {
		return fmt.Errorf("nothing was removed: %w", err)
	}
	if agent != nil {
		a.step("asking every node, before anything is removed")
		if err := a.askNodes(ctx, k, agent); err != nil {
			return err
		}
	}
	a.step("removing the webhooks")
	for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		if _, err := k.Run(ctx, nil, "delete", kind, "-l", partOf, "--ignore-not-found"); err != nil {
			return err
		}
	}
	if err := a.stopManager(ctx, k); err != nil {
		return err
	}
	if undo != nil {
		a.step("naming host-local in flannel's configuration, and restarting its pods")
		if err := a.writeFlannel(ctx, k, undo.config, undo.annotations, undo.text); err != nil {
			return err
		}
	}
	a.step("removing the agents")
	_, err = k.Run(ctx, nil, "delete", "-n", k.Namespace, "daemonset", agentName, "--ignore-not-found",
		"--cascade=foreground", "--timeout="+k.Timeout.String())
	if err != nil {
		return podsLeft(ctx, k, agentName, err)
	}
	a.step("removing the plugin from the nodes")
	if err := a.cleanNodes(ctx, k, agent); err != nil {
		return err
	}
	if keepObjects {
		_, err := k.Run(ctx, nil, "delete", "-n", k.Namespace, "daemonset", uninstallName, "--ignore-not-found")
		return err
	}
	return a.removeObjects(ctx, k, crds)
}

// step prints what a command does next.
func (a *app) step(format string, args ...any) { fmt.Fprintf(a.Stdout, format+"\n", args...) }

// removeObjects removes everything of leasehold that is left in a cluster, the CRDs only if crds is
// set.
func (a *app) removeObjects(ctx context.Context, k *kubectl.Client, crds bool) error {
	a.step("removing everything else")
	for _, kind := range clusterKinds {
		if _, err := k.Run(ctx, nil, "delete", kind, "-l", partOf, "--ignore-not-found"); err != nil {
			return err
		}
	}
	_, err := k.Run(ctx, nil, "delete", "namespace", k.Namespace, "--ignore-not-found", "--timeout="+k.Timeout.String())
	if err != nil {
		return err
	}
	if !crds {
		a.step("the CRDs and their objects are left; --crds removes them")
		return nil
	}
	for _, label := range []string{partOf, managedBy} {
		_, err := k.Run(ctx, nil, "delete", "crd", "-l", label, "--ignore-not-found", "--timeout="+k.Timeout.String())
		if err != nil {
			return err
		}
	}
	return nil
}

// stopManager scales the manager to zero and waits until its pods are deleted.
func (a *app) stopManager(ctx context.Context, k *kubectl.Client) error {
	manager, err := k.Get(ctx, "-n", k.Namespace, "deployment", managerName)
	if err != nil || manager == nil {
		return err
	}
	a.step("stopping the manager")
	if _, err := k.Run(ctx, nil, "scale", "-n", k.Namespace, "deployment", managerName, "--replicas=0"); err != nil {
		return err
	}
	_, err = k.Run(ctx, nil, "wait", "-n", k.Namespace, "pod", "--for=delete", "-l",
		"app.kubernetes.io/name="+managerName, "--timeout="+k.Timeout.String())
	return podsLeft(ctx, k, managerName, err)
}

// podsLeft adds to an error the pods with a name in their label that are left, by node. It returns
// nil if err is nil.
func podsLeft(ctx context.Context, k *kubectl.Client, name string, err error) error {
	if err == nil {
		return nil
	}
	pods, e := k.Get(ctx, "-n", k.Namespace, "pod", "-l", "app.kubernetes.io/name="+name)
	err = errors.Join(err, e)
	for _, p := range pods.List("items") {
		err = errors.Join(err, fmt.Errorf("pod %s of node %s has not ended", p.Text("metadata", "name"),
			p.Text("spec", "nodeName")))
	}
	return err
}
