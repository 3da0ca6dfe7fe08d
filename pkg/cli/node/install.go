package node

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/install"
)

// install returns the command that installs the plugin on this node, or names it in a
// configuration.
func (a *app) install() *cobra.Command {
	var conf string
	var binDirs []string
	var replace, watch, annotations bool
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
				if a.Yes || annotations {
					return cli.Usage("--yes and --pod-annotations need --conf")
				}
				if plugin, err = readPlugin(); err != nil {
					return err
				}
			}
			return a.enter()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			agreed := func() bool { return a.Ask(cmd, "Change it?") }
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
	a.YesFlag(c)
	f := c.Flags()
	f.StringVar(&conf, "conf", "", "`path` of a CNI configuration of this node")
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
	if !a.Change(path, content, changed, agreed) {
		return nil
	}
	return cniconf.Change{Path: path, Before: content, After: changed}.Write()
}
