package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/kubectl"
)

const (
	flannelConfig = "kube-flannel-cfg"
	flannelKey    = "cni-conf.json"
	// flannelFile is the name of the file to which kube-flannel writes the content of flannelKey on
	// each node.
	flannelFile = "10-flannel.conflist"
	// beforeInstall is set on flannel's ConfigMap by leasectl install. Its value is the CNI
	// configuration that the ConfigMap had before.
	beforeInstall = "leasehold.dev/before-install"
	// beforeUninstall is the same of leasectl uninstall, where that has changed what was edited by
	// hand.
	beforeUninstall = "leasehold.dev/before-uninstall"
	backupSuffix    = cniconf.BackupSuffix
)

func (a *app) install() *cobra.Command {
	k := kubectl.Client{Timeout: 10 * time.Minute}
	var conf string
	var binDirs []string
	var yes, annotations bool
	c := &cobra.Command{
		Use:   "install",
		Short: "Name leasehold in flannel's configuration, or in a configuration of this node",
		Long: `Name leasehold as the IPAM plugin where host-local is named, or is the default. It
shows the difference first, and asks. What was there is kept, for "leasectl uninstall".

For flannel it changes the ConfigMap kube-flannel-cfg, with kubectl, and restarts
flannel's pods, which write the configuration to the nodes. The agent's DaemonSet
has to be there: the plugin must be on the nodes before a configuration names it.

With --conf it changes a configuration of this node, for bridge, ptp and macvlan.
With --pod-annotations as well it does not name leasehold there, but lets the runtime
pass the annotations of pods, which a node without an agent needs.`,
		Example: "  leasectl install\n  kubectl leasehold install --yes\n" +
			"  leasectl install --conf /etc/cni/net.d/10-bridge.conflist",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			agreed := func() bool { return yes || a.ask(cmd.InOrStdin(), "Change it?") }
			if conf != "" {
				if annotations {
					return a.changeFile(conf, cniconf.WithAnnotations, agreed)
				}
				return a.installFile(conf, binDirs, agreed)
			}
			return a.installFlannel(cmd.Context(), &k, agreed)
		},
	}
	k.AddFlags(c.Flags())
	waitFlags(c, &k)
	c.Flags().StringVar(&conf, "conf", "", "`path` of a CNI configuration of this node")
	c.Flags().StringSliceVar(&binDirs, "cni-bin-dir", []string{"/opt/cni/bin"},
		"with --conf: the runtime's `directories` of plugins")
	c.Flags().BoolVar(&annotations, "pod-annotations", false,
		"with --conf: let the runtime pass the annotations of pods, and change nothing else")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// waitFlags defines the flags of the commands that change leasehold's objects in the cluster.
func waitFlags(c *cobra.Command, k *kubectl.Client) {
	c.Flags().StringVar(&k.Namespace, "namespace", "leasehold-system", "namespace of leasehold")
	c.Flags().DurationVar(&k.Timeout, "timeout", k.Timeout, "how long to wait for pods in each step")
}

// ask prints a question on standard error, and reports whether the user answers yes. Without an
// answer it reports false.
func (a *app) ask(in interface{ Read([]byte) (int, error) }, question string) bool {
	fmt.Fprintf(a.Stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	fmt.Fprintln(a.Stderr, "Nothing was changed.")
	return false
}

// printDiff prints the lines from the first to the last difference of two texts.
func (a *app) printDiff(name string, before, after []byte) {
	old, new := strings.Split(string(before), "\n"), strings.Split(string(after), "\n")
	first := 0
	for first < min(len(old), len(new)) && old[first] == new[first] {
		first++
	}
	last := 0
	for last < min(len(old), len(new))-first && old[len(old)-1-last] == new[len(new)-1-last] {
		last++
	}
	fmt.Fprintf(a.Stdout, "--- %s\n+++ %s\n@@ -%d +%d @@\n", name, name, first+1, first+1)
	for _, line := range old[first : len(old)-last] {
		fmt.Fprintln(a.Stdout, "-"+line)
	}
	for _, line := range new[first : len(new)-last] {
		fmt.Fprintln(a.Stdout, "+"+line)
	}
}

func (a *app) installFlannel(ctx context.Context, k *kubectl.Client, agreed func() bool) error {
	config, err := flannel(ctx, k)
	if err != nil {
		return err
	}
	if config == nil {
		return fmt.Errorf("there is no ConfigMap %s in the namespaces kube-flannel and kube-system; "+
			"for other network plugins run \"leasectl install --conf FILE\" on each node", flannelConfig)
	}
	text := config.Text("data", flannelKey)
	changed, err := cniconf.WithLeasehold(flannelFile, []byte(text))
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", flannelConfig, err)
	}
	// The plugin must be on all nodes before a configuration names it.
	agent, err := k.Get(ctx, "-n", k.Namespace, "daemonset", agentName)
	if err != nil {
		return err
	}
	if agent == nil {
		return fmt.Errorf("there is no DaemonSet %s in namespace %s; kubectl apply -k daemonset/overlays/named first",
			agentName, k.Namespace)
	}
	if args := kubectl.Arguments(kubectl.Named(agent.List("spec", "template", "spec", "initContainers"), installerName),
		"replace"); len(args) > 0 {
		return errors.New("leasehold takes host-local's place on the nodes already; no configuration has to name it")
	}
	a.printDiff(config.Text("metadata", "namespace")+"/"+flannelConfig+" "+flannelKey, []byte(text), changed)
	if !agreed() {
		return nil
	}
	if err := k.Rollout(ctx, k.Namespace, agentName); err != nil {
		return err
	}
	return a.writeFlannel(ctx, k, config, kubectl.Object{beforeInstall: text, beforeUninstall: nil}, string(changed))
}

// flannelUndo is the change of flannel's ConfigMap with which it names leasehold no more.
type flannelUndo struct {
	config      kubectl.Object
	annotations kubectl.Object // those to set; nil removes one
	text        string
}

// undoFlannel returns how to undo installFlannel, or what somebody has edited by hand. It returns
// nil if there is nothing to undo.
func undoFlannel(ctx context.Context, k *kubectl.Client) (*flannelUndo, error) {
	config, err := flannel(ctx, k)
	if err != nil || config == nil {
		return nil, err
	}
	text, backup := config.Text("data", flannelKey), config.Text("metadata", "annotations", beforeInstall)
	var before []byte
	if backup != "" {
		before = []byte(backup)
	}
	restored, edited, err := cniconf.WithoutLeasehold(flannelFile, []byte(text), before)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", flannelConfig, err)
	}
	if backup == "" && string(restored) == text {
		return nil, nil
	}
	u := &flannelUndo{config, kubectl.Object{beforeInstall: nil}, string(restored)}
	if edited {
		u.annotations[beforeUninstall] = text
	}
	return u, nil
}

// flannel returns the ConfigMap of flannel, nil if there is none.
func flannel(ctx context.Context, k *kubectl.Client) (kubectl.Object, error) {
	for _, namespace := range []string{"kube-flannel", "kube-system"} {
		config, err := k.Get(ctx, "-n", namespace, "configmap", flannelConfig)
		if config != nil || err != nil {
			return config, err
		}
	}
	return nil, nil
}

// writeFlannel writes text to flannel's ConfigMap, and annotations, of which it removes those that
// are nil. Then it restarts the pods that use the ConfigMap, and waits for them. It returns an
// error if the ConfigMap has changed since config was read.
func (a *app) writeFlannel(ctx context.Context, k *kubectl.Client, config, annotations kubectl.Object,
	text string) error {
	patch, err := json.Marshal(kubectl.Object{
		"metadata": kubectl.Object{
			"resourceVersion": config.Text("metadata", "resourceVersion"),
			"annotations":     annotations,
		},
		"data": kubectl.Object{flannelKey: text},
	})
	if err != nil {
		return err
	}
	// kubectl replace is not used, because it would also write the annotation in which kubectl
	// apply has stored flannel's manifest.
	namespace := config.Text("metadata", "namespace")
	_, err = k.Run(ctx, nil, "patch", "-n", namespace, "configmap", flannelConfig, "--type=merge", "-p", string(patch))
	if err != nil {
		return err
	}
	daemons, err := k.Get(ctx, "-n", namespace, "daemonset")
	if err != nil {
		return err
	}
	restarted := false
	for _, d := range daemons.List("items") {
		for _, volume := range d.List("spec", "template", "spec", "volumes") {
			if volume.Text("configMap", "name") != flannelConfig {
				continue
			}
			name := d.Text("metadata", "name")
			fmt.Fprintf(a.Stdout, "restarting the pods of %s/%s\n", namespace, name)
			if _, err := k.Run(ctx, nil, "rollout", "restart", "-n", namespace, "daemonset/"+name); err != nil {
				return err
			}
			if err := k.Rollout(ctx, namespace, name); err != nil {
				return err
			}
			restarted = true
		}
	}
	if !restarted {
		return fmt.Errorf("no DaemonSet in namespace %s uses the ConfigMap %s; restart what writes it to the nodes",
			namespace, flannelConfig)
	}
	return nil
}

func (a *app) installFile(path string, binDirs []string, agreed func() bool) error {
	binary, err := (&cniconf.Binaries{Dirs: binDirs}).Resolve(cniconf.Leasehold)
	switch {
	case err != nil:
		return err
	case binary.Path == "" || !binary.Ours || !binary.Executable:
		return fmt.Errorf("leasehold is not in %s; the plugin has to be there before a configuration names it",
			strings.Join(binDirs, ", "))
	}
	return a.changeFile(path, cniconf.WithLeasehold, agreed)
}

// changeFile changes a configuration file of this node, after agreed reports true, and stores the
// former content in a backup file in the same directory.
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
		fmt.Fprintf(a.Stdout, "%s is so already\n", path)
		return nil
	}
	a.printDiff(path, content, changed)
	if !agreed() {
		return nil
	}
	f, err := cniconf.Parse(path, content)
	if err != nil {
		return err
	}
	// An earlier install has made the backup if the content names leasehold or is made of the
	// backup.
	before, err := os.ReadFile(path + backupSuffix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil || !f.NamesLeasehold() && !cniconf.IsMadeOf(path, content, before) {
		if err := files.Replace(path+backupSuffix, path, content); err != nil {
			return err
		}
	}
	if err := files.Replace(path, path, changed); err != nil {
		return err
	}
	fmt.Fprintf(a.Stdout, "what was there is in %s\n", path+backupSuffix)
	return nil
}

// restoreFile undoes changeFile, or names host-local in a configuration that was edited by hand.
func (a *app) restoreFile(path string) error {
	u, err := cniconf.UndoOf(path)
	if err != nil {
		return err
	}
	if u.Path == "" {
		return fmt.Errorf("%s does not name leasehold, and was not changed by leasectl install", path)
	}
	if !bytes.Equal(u.Before, u.After) {
		a.printDiff(path, u.Before, u.After)
	}
	if err := u.Write(); err != nil {
		return err
	}
	if u.Edited {
		fmt.Fprintf(a.Stdout, "what was there is in %s\n", path+cniconf.UndoneSuffix)
	}
	return nil
}
