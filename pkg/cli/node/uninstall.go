package node

import (
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/install"
)

// uninstall returns the command that removes leasehold from this node.
func (a *app) uninstall() *cobra.Command {
	var cni cniFlags
	var dryRun bool
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
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			// The kubelet copies the content of this file to the pod's status, where kubectl
			// leasehold uninstall reads it. Outside of a container there is none.
			answer, _ = os.OpenFile("/dev/termination-log", os.O_WRONLY|os.O_TRUNC, 0)
			if self, err = os.ReadFile("/proc/self/exe"); err != nil {
				return err
			}
			return a.enter()
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			runtime := cni.runtime()
			if a.Output != "" && !dryRun {
				return cli.Usage("-o needs --dry-run")
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
			if a.Output == "json" {
				return a.PrintJSON(plan)
			}
			if a.Step("- %s", strings.Join(plan.Steps, "\n- ")); dryRun {
				return nil
			}
			if err := a.Agree(cmd, "Remove leasehold from this node?"); err != nil {
				return err
			}
			if text, err = u.Run(cmd.Context(), plan); err == nil {
				a.Step("leasehold is removed from this node\n%s", text)
			}
			return err
		},
	}
	cni.register(c)
	a.OutputFlag(c)
	a.YesFlag(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be done, and change nothing")
	return c
}

// idle returns the command that keeps a pod running after it has removed leasehold from its node.
func idle() *cobra.Command {
	return &cobra.Command{Use: "idle", Hidden: true, Short: "Do nothing until a signal", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { <-cmd.Context().Done() }}
}
