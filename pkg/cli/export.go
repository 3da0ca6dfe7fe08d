package cli

import (
	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func (a *app) export() *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Write host-local's files from the store",
		Long: `Synchronize host-local's directory of each network with the store, so that
host-local can serve the next call. The plugin does the same with every call; this
command is for a damaged directory, and for the time before uninstalling.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if unused, err := a.isUnused(cmd.Context()); unused || err != nil {
				return err
			}
			pools, err := a.service().Export(cmd.Context(), func(lease.Pool) bool { return true })
			for _, p := range pools {
				a.step("%s is in sync with the store", hostlocal.Path(p))
			}
			return err
		},
	}
}
