package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func (a *app) export() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write host-local's files from the store",
		Long: `Synchronize host-local's directory of each network with the store, so that
host-local can serve the next call. The plugin does the same with every call; this
command is for a damaged directory, and for the time before uninstalling.`,
		Example: "  leasectl export --format host-local",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "host-local" {
				return usage("invalid --format %q; want host-local", format)
			}
			pools, err := a.service().Export(cmd.Context(), func(p lease.Pool) bool {
				return a.network == "" || p.Network == a.network
			})
			for _, p := range pools {
				fmt.Fprintf(a.Stdout, "%s is in sync with the store\n", hostlocal.Path(p))
			}
			return err
		},
	}
	c.Flags().StringVar(&format, "format", "host-local", "format of the files: host-local")
	complete(c, "format", "host-local")
	return c
}
