package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func (a *app) export() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write host-local's files anew from the store",
		Long: `Bring host-local's directory of each network in step with the store, so that
host-local may serve the next call. The plugin keeps it in step by itself; this
is for a directory that was damaged, and before uninstalling.`,
		Example: "  leasectl export --format host-local",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "host-local" {
				return usage("--format %q: it is host-local", format)
			}
			pools, err := a.service().Export(cmd.Context(), func(p lease.Pool) bool { return a.network == "" || p.Network == a.network })
			for _, p := range pools {
				fmt.Fprintf(a.Stdout, "%s is in step with the store\n", adopt.Dir(p))
			}
			return err
		},
	}
	c.Flags().StringVar(&format, "format", "host-local", "whose files: host-local")
	complete(c, "format", "host-local")
	return c
}
