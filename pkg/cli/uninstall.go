package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
waiting and no address is given twice: the webhooks, the manager (which lifts its
gates), the configuration of flannel if "leasectl install" has changed it, the
agents, the plugin on each node, everything else. On the nodes nothing is left but
host-local and its files. Running pods keep their addresses; held addresses are
released. It can be repeated after an error.

The CRDs and with them all IPReservations and PersistentPodStates stay, unless
--crds is set.

With --keep-objects it ends when the nodes are done; "helm uninstall", which calls it so
before it removes the objects, does the rest.

With --conf it only puts back the configuration of this node that "leasectl install
--conf" has changed.`,
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
// matters: each step must succeed before the next one begins. Otherwise pods might keep their
// gates, or nodes might be without a plugin.
func (a *app) leave(ctx context.Context, k *kubectl.Client, crds, keepObjects bool) error {
	step := func(format string, args ...any) { fmt.Fprintf(a.Stdout, format+"\n", args...) }
	agent, err := k.Get(ctx, "-n", k.Namespace, "daemonset", agentName)
	if err != nil {
		return err
	}
	daemon, err := k.Get(ctx, "-n", k.Namespace, "daemonset", uninstallName)
	if err != nil {
		return err
	}
	if agent == nil && daemon == nil {
		return fmt.Errorf("there is no DaemonSet %s in namespace %s; if it was deleted by hand, apply it again first: "+
			"the nodes still have the plugin", agentName, k.Namespace)
	}
	if agent != nil {
		if daemon, err = uninstaller(agent); err != nil {
			return err
		}
	}

	step("removing the webhooks")
	for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		if _, err := k.Run(ctx, nil, "delete", kind, "-l", partOf, "--ignore-not-found"); err != nil {
			return err
		}
	}
	if err := a.stopManager(ctx, k, step); err != nil {
		return err
	}
	if err := a.restoreFlannel(ctx, k, step); err != nil {
		return err
	}
	step("removing the agents")
	_, err = k.Run(ctx, nil, "delete", "-n", k.Namespace, "daemonset", agentName, "--ignore-not-found",
		"--cascade=foreground", "--timeout="+k.Timeout.String())
	if err != nil {
		return err
	}
	step("removing the plugin from the nodes")
	manifest, err := json.Marshal(daemon)
	if err != nil {
		return err
	}
	if agent != nil {
		if _, err := k.Run(ctx, manifest, "apply", "-f", "-"); err != nil {
			return err
		}
	}
	if err := k.Rollout(ctx, k.Namespace, uninstallName); err != nil {
		logs, _ := k.Run(ctx, nil, "logs", "-n", k.Namespace, "-l", "app.kubernetes.io/name="+uninstallName,
			"-c", uninstallName, "--prefix", "--tail=5", "--ignore-errors")
		return fmt.Errorf("%w\n%s\nleasehold is left on nodes whose pod of %s is not ready; "+
			"remove the cause, then run this command again", err, logs, uninstallName)
	}
	if keepObjects {
		_, err := k.Run(ctx, nil, "delete", "-n", k.Namespace, "daemonset", uninstallName, "--ignore-not-found")
		return err
	}
	step("removing everything else")
	for _, kind := range clusterKinds {
		if _, err := k.Run(ctx, nil, "delete", kind, "-l", partOf, "--ignore-not-found"); err != nil {
			return err
		}
	}
	_, err = k.Run(ctx, nil, "delete", "namespace", k.Namespace, "--ignore-not-found", "--timeout="+k.Timeout.String())
	if err != nil {
		return err
	}
	if !crds {
		step("the CRDs and their objects are left; --crds removes them")
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

// stopManager scales the manager to zero and waits until its pods are deleted. The replicas lift
// all gates of the pin before they end.
func (a *app) stopManager(ctx context.Context, k *kubectl.Client, step func(string, ...any)) error {
	manager, err := k.Get(ctx, "-n", k.Namespace, "deployment", managerName)
	if err != nil || manager == nil {
		return err
	}
	step("stopping the manager, which lifts its gates")
	if _, err := k.Run(ctx, nil, "scale", "-n", k.Namespace, "deployment", managerName, "--replicas=0"); err != nil {
		return err
	}
	_, err = k.Run(ctx, nil, "wait", "-n", k.Namespace, "pod", "--for=delete", "-l",
		"app.kubernetes.io/name="+managerName, "--timeout="+k.Timeout.String())
	return err
}

// uninstaller returns the DaemonSet whose pods remove the plugin from the nodes. Its pods run on
// the same nodes, with the same image and privileges, as the pods of the given agent DaemonSet.
func uninstaller(agent kubectl.Object) (kubectl.Object, error) {
	spec := kubectl.Object{}
	if err := remarshal(agent.Field("spec", "template", "spec"), &spec); err != nil {
		return nil, err
	}
	install := kubectl.Named(spec.List("initContainers"), installerName)
	container := kubectl.Named(spec.List("containers"), "agent")
	to := kubectl.Arguments(install, "--to=")
	if install == nil || container == nil || len(to) != 1 {
		return nil, fmt.Errorf("the DaemonSet %s has no containers %s and agent as leasehold's manifests have",
			agentName, installerName)
	}
	security := kubectl.Object{}
	if err := remarshal(container.Field("securityContext"), &security); err != nil {
		return nil, err
	}
	if capabilities, ok := security["capabilities"].(map[string]any); ok {
		add, _ := capabilities["add"].([]any)
		capabilities["add"] = append(add, "DAC_OVERRIDE")
	}
	common := func(name string, args ...string) kubectl.Object {
		return kubectl.Object{"name": name, "image": install["image"], "imagePullPolicy": install["imagePullPolicy"],
			"args": args}
	}
	remove := common(uninstallName, uninstallArgs(install, container)...)
	remove["securityContext"] = security
	spec["initContainers"] = []kubectl.Object{remove}
	spec["containers"] = []kubectl.Object{common("idle", "idle")}
	// The agent needs the service account for the API, which the uninstaller does not use.
	spec["automountServiceAccountToken"] = false
	// If a namespace is deleted while it has pods, the namespace controller checks it again only
	// after half of the pods' grace period.
	spec["terminationGracePeriodSeconds"] = 1
	labels := kubectl.Object{"app.kubernetes.io/name": uninstallName, "app.kubernetes.io/part-of": "leasehold"}
	return kubectl.Object{
		"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": kubectl.Object{"name": uninstallName, "namespace": agent.Text("metadata", "namespace"),
			"labels": labels},
		"spec": kubectl.Object{
			"selector":       kubectl.Object{"matchLabels": kubectl.Object{"app.kubernetes.io/name": uninstallName}},
			"updateStrategy": kubectl.Object{"rollingUpdate": kubectl.Object{"maxUnavailable": "100%"}},
			"template":       kubectl.Object{"metadata": kubectl.Object{"labels": labels}, "spec": spec},
		},
	}, nil
}

// uninstallArgs returns the arguments of the installer that remove what it has installed with the
// arguments of these two containers.
func uninstallArgs(install, agent kubectl.Object) []string {
	args := append([]string{"uninstall"}, kubectl.Arguments(install, "--to=")...)
	args = append(args, kubectl.Arguments(install, "--host-root=")...)
	var dirs []string
	for _, dir := range kubectl.Arguments(agent, "--cni-conf-dir=") {
		dirs = append(dirs, strings.TrimPrefix(dir, "--cni-conf-dir="))
	}
	if len(dirs) > 0 {
		args = append(args, "--cni-conf-dir="+strings.Join(dirs, ","))
	}
	return args
}

// remarshal copies a value by encoding it to JSON and decoding it.
func remarshal(from any, to any) error {
	b, err := json.Marshal(from)
	return errors.Join(err, json.Unmarshal(b, to))
}
