package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
)

const (
	flannelConfig = "kube-flannel-cfg"
	flannelKey    = "cni-conf.json"
	// flannelFile is the name of the file to which kube-flannel writes the content of flannelKey on
	// each node.
	flannelFile = "10-flannel.conflist"
)

// install returns the command of the kubectl plugin that changes flannel's ConfigMap.
func (c *cluster) install() *cobra.Command {
	command := &cobra.Command{
		Use:   "install",
		Short: "Name leasehold in flannel's configuration",
		Long: `Name leasehold as the IPAM plugin in flannel's ConfigMap kube-flannel-cfg, and restart
flannel's pods, which write the configuration to the nodes. It shows the difference
first, and asks. "kubectl leasehold uninstall" undoes it.

The agent's DaemonSet has to be there: the plugin must be on the nodes before a
configuration names it.`,
		Example: "  kubectl leasehold install\n  kubectl leasehold install --yes",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.installFlannel(cmd.Context(), func() bool { return c.Ask(cmd, "Change it?") })
		},
	}
	c.timeoutFlag(command)
	c.YesFlag(command)
	return command
}

func (c *cluster) timeoutFlag(command *cobra.Command) {
	command.Flags().DurationVar(&c.timeout, "timeout", 10*time.Minute, "how long to wait for pods in each step")
}

func (c *cluster) installFlannel(ctx context.Context, agreed func() bool) error {
	change, err := c.changeFlannel(ctx, cniconf.WithLeasehold)
	if err != nil {
		return err
	}
	if change.config == nil {
		return fmt.Errorf("there is no ConfigMap %s in the namespaces kube-flannel and kube-system; "+
			"for other network plugins run \"leasectl install --conf FILE\" on each node", flannelConfig)
	}
	// The plugin must be on all nodes before a configuration names it.
	agent, err := c.own(ctx, "daemonset", cli.AgentName)
	if err != nil {
		return err
	}
	if agent == nil {
		return fmt.Errorf("there is no DaemonSet %s in namespace %s; apply the manifests of the overlay named first",
			cli.AgentName, cli.Namespace)
	}
	if args := arguments(agent.List("spec", "template", "spec", "initContainers"), installerName,
		"--watch"); len(args) > 0 {
		return errors.New("leasehold takes host-local's place on the nodes already; no configuration has to name it")
	}
	name := namespaceOf(change.config) + "/" + flannelConfig + " " + flannelKey
	if !c.Change(name, []byte(change.before), []byte(change.after), agreed) {
		return nil
	}
	if err := c.rollout(ctx, cli.Namespace, cli.AgentName); err != nil {
		return err
	}
	return c.writeFlannel(ctx, change)
}

// flannelChange is a change of the CNI configuration in flannel's ConfigMap. config is nil if there
// is no such ConfigMap.
type flannelChange struct {
	config        object
	before, after string
}

// changeFlannel returns what edit makes of flannel's ConfigMap.
func (c *cluster) changeFlannel(ctx context.Context, edit func(string, []byte) ([]byte, error)) (flannelChange, error) {
	for _, namespace := range []string{"kube-flannel", "kube-system"} {
		config, err := c.get(ctx, "-n", namespace, "configmap", flannelConfig)
		if err != nil {
			return flannelChange{}, err
		}
		if config != nil {
			before := config.Text("data", flannelKey)
			after, err := edit(flannelFile, []byte(before))
			if err != nil {
				err = fmt.Errorf("ConfigMap %s: %w", flannelConfig, err)
			}
			return flannelChange{config, before, string(after)}, err
		}
	}
	return flannelChange{}, nil
}

// writeFlannel changes flannel's ConfigMap. Then it restarts the pods that use the ConfigMap, and
// waits for them. It returns an error if the ConfigMap has changed since it was read.
func (c *cluster) writeFlannel(ctx context.Context, change flannelChange) error {
	// kubectl replace is not used, because it would also write the annotation in which kubectl
	// apply has stored flannel's manifest.
	namespace := namespaceOf(change.config)
	if err := c.patch(ctx, namespace, "configmap", flannelConfig, "merge", object{
		"metadata": object{"resourceVersion": change.config.Text("metadata", "resourceVersion")},
		"data":     object{flannelKey: change.after},
	}); err != nil {
		return err
	}
	daemons, err := c.items(ctx, "-n", namespace, "daemonset")
	uses := func(volume object) bool { return volume.Text("configMap", "name") == flannelConfig }
	daemons = slices.DeleteFunc(daemons, func(d object) bool {
		return !slices.ContainsFunc(d.List("spec", "template", "spec", "volumes"), uses)
	})
	if err == nil && len(daemons) == 0 {
		err = fmt.Errorf("no DaemonSet in namespace %s uses the ConfigMap %s; restart what writes it to the nodes",
			namespace, flannelConfig)
	}
	if err != nil {
		return err
	}
	for _, d := range daemons {
		name := nameOf(d)
		c.Step("restarting the pods of %s/%s", namespace, name)
		if _, err := c.kubectl(ctx, nil, "rollout", "restart", "-n", namespace, "daemonset/"+name); err != nil {
			return err
		}
		if err := c.rollout(ctx, namespace, name); err != nil {
			return err
		}
	}
	return nil
}
