package cli

import (
	"errors"

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
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "host-local" {
				return usage("invalid --format %q; want host-local", format)
			}
			if unused, err := a.isUnused(cmd.Context()); unused || err != nil {
				return errors.Join(err, a.printExported(nil))
			}
			pools, err := a.service().Export(cmd.Context(), func(p lease.Pool) bool {
				return a.network == "" || p.Network == a.network
			})
			return errors.Join(err, a.printExported(pools))
		},
	}
	c.Flags().StringVar(&format, "format", "host-local", "format of the files: host-local")
	_ = c.Flags().MarkHidden("format") // there is no other
	return c
}

// exported is the JSON form of the result of export for one directory of host-local. Its fields are
// a stable interface.
type exported struct {
	Network string `json:"network"`
	Path    string `json:"path"`
}

func (a *app) printExported(pools []lease.Pool) error {
	all := []exported{}
	for _, p := range pools {
		all = append(all, exported{p.Network, hostlocal.Path(p)})
	}
	if a.output == "json" {
		return a.printJSON(all)
	}
	for _, e := range all {
		a.step("%s is in sync with the store", e.Path)
	}
	return nil
}
