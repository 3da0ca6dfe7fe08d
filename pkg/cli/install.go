package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/install"
)

const (
	flannelConfig = "kube-flannel-cfg"
	flannelKey    = "cni-conf.json"
	// flannelFile is the name of the file to which kube-flannel writes the content of flannelKey on
	// each node.
	flannelFile = "10-flannel.conflist"
)

// install returns the command that installs the plugin on this node, or names it in a
// configuration.
func (a *app) install() *cobra.Command {
	var conf string
	var binDirs []string
	var replace, watch, yes, annotations bool
	var plugin []byte
	c := &cobra.Command{
		Use:   "install",
		Short: "Install the plugin on this node, or name it in a CNI configuration",
		Long: `Put the plugin, which is the program leasehold beside leasectl, into the runtime's
directory of plugins: under its own name, or with --replace under host-local's, which is
kept as host-local.original. The agent's DaemonSet does this.

With --conf, name leasehold as the IPAM plugin where host-local is named, or is the
default, in a configuration of this node, for bridge, ptp, macvlan and flannel. It shows
the difference first, and asks. "leasectl uninstall" undoes it. With --pod-annotations it
does not name leasehold there, but lets the runtime pass the annotations of pods, which a
node without an agent needs.

"kubectl leasehold install" changes flannel's configuration for all nodes.`,
		Example: "  leasectl install\n  leasectl install --conf=/etc/cni/net.d/10-bridge.conflist",
		Args:    cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			if conf == "" {
				if yes || annotations {
					return usage("--yes and --pod-annotations need --conf")
				}
				if plugin, err = readPlugin(); err != nil {
					return err
				}
			}
			return a.enter()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			agreed := func() bool { return yes || a.ask(cmd.InOrStdin(), "Change it?") }
			switch {
			case annotations:
				return a.changeFile(conf, cniconf.WithAnnotations, agreed)
			case conf != "":
				if err := findPlugin(binDirs); err != nil {
					return err
				}
				return a.changeFile(conf, cniconf.WithLeasehold, agreed)
			}
			dir := install.Dir(binDirs[0])
			put := dir.Install
			if replace || watch {
				put = dir.Replace
			}
			done, err := put(plugin)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(a.Stderr, nil))
			log.Info("leasehold is installed", "directory", dir, "replacesHostLocal", replace || watch, "changed", done)
			if watch {
				dir.Watch(cmd.Context(), plugin, log)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&conf, "conf", "", "`path` of a CNI configuration of this node")
	f.BoolVar(&yes, "yes", false, "do not ask")
	f.StringSliceVar(&binDirs, "cni-bin-dir", []string{"/opt/cni/bin"}, "the runtime's `directories` of plugins; "+
		"the plugin is installed in the first")
	f.BoolVar(&annotations, "pod-annotations", false, "let the runtime pass the annotations of pods, and change "+
		"nothing else")
	f.BoolVar(&replace, "replace", false, "install the plugin in host-local's place")
	f.BoolVar(&watch, "watch", false, "the same, and stay: replace host-local again when it is installed again")
	c.MarkFlagsMutuallyExclusive("conf", "replace")
	c.MarkFlagsMutuallyExclusive("conf", "watch")
	c.MarkFlagsMutuallyExclusive("cni-bin-dir", "pod-annotations")
	return c
}

// readPlugin reads the plugin beside this program.
func readPlugin() ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(filepath.Dir(self), cniconf.Leasehold))
}

// install returns the command of the kubectl plugin that changes flannel's ConfigMap.
func (c *cluster) install() *cobra.Command {
	var yes bool
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
			return c.installFlannel(cmd.Context(), func() bool { return yes || c.ask(cmd.InOrStdin(), "Change it?") })
		},
	}
	c.timeoutFlag(command)
	command.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return command
}

func (c *cluster) timeoutFlag(command *cobra.Command) {
	command.Flags().DurationVar(&c.timeout, "timeout", 10*time.Minute, "how long to wait for pods in each step")
}

// ask prints a question on standard error, and reports whether the user answers yes. Without an
// answer it reports false.
func (a *app) ask(in io.Reader, question string) bool {
	fmt.Fprintf(a.Stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(in).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
		return true
	}
	fmt.Fprintln(a.Stderr, "Nothing was changed.")
	return false
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
	agent, err := c.own(ctx, "daemonset", agentName)
	if err != nil {
		return err
	}
	if agent == nil {
		return fmt.Errorf("there is no DaemonSet %s in namespace %s; apply the manifests of the overlay named first",
			agentName, c.system)
	}
	if args := arguments(named(agent.List("spec", "template", "spec", "initContainers"), installerName),
		"--watch"); len(args) > 0 {
		return errors.New("leasehold takes host-local's place on the nodes already; no configuration has to name it")
	}
	name := namespaceOf(change.config) + "/" + flannelConfig + " " + flannelKey
	fmt.Fprintf(c.Stdout, "%s", diff.Diff(name, []byte(change.before), name, []byte(change.after)))
	if !agreed() {
		return nil
	}
	if err := c.rollout(ctx, c.system, agentName); err != nil {
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
	if err != nil {
		return err
	}
	uses := func(volume object) bool { return volume.Text("configMap", "name") == flannelConfig }
	restarted := false
	for _, d := range daemons {
		if !slices.ContainsFunc(d.List("spec", "template", "spec", "volumes"), uses) {
			continue
		}
		name := nameOf(d)
		c.step("restarting the pods of %s/%s", namespace, name)
		if _, err := c.kubectl(ctx, nil, "rollout", "restart", "-n", namespace, "daemonset/"+name); err != nil {
			return err
		}
		if err := c.rollout(ctx, namespace, name); err != nil {
			return err
		}
		restarted = true
	}
	if !restarted {
		return fmt.Errorf("no DaemonSet in namespace %s uses the ConfigMap %s; restart what writes it to the nodes",
			namespace, flannelConfig)
	}
	return nil
}

// findPlugin returns an error unless a configuration that names leasehold leads to its plugin.
func findPlugin(binDirs []string) error {
	binary, err := cniconf.Binaries(binDirs).Resolve(cniconf.Leasehold)
	if err == nil && !binary.Ours {
		err = fmt.Errorf("leasehold is not in %s; the plugin has to be there before a configuration names it",
			strings.Join(binDirs, ", "))
	}
	return err
}

// changeFile changes a configuration file of this node, after agreed reports true.
func (a *app) changeFile(path string, change func(string, []byte) ([]byte, error), agreed func() bool) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := change(path, content)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if bytes.Equal(content, changed) {
		a.step("%s is so already", path)
		return nil
	}
	fmt.Fprintf(a.Stdout, "%s", diff.Diff(path, content, path, changed))
	if !agreed() {
		return nil
	}
	return files.Replace(path, path, changed)
}
