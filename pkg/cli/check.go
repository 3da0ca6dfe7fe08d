package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// checked is the JSON form of the result of check. Its fields are a stable interface.
type checked struct {
	Leases   int      `json:"leases"`
	Problems []string `json:"problems"`
}

func (a *app) check() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the integrity of the store",
		Long: `Read the whole store and check its pages, the checksum and the invariants of each
record, and that the indexes match the records. Every problem is printed, and the
exit status is then 1. Nothing is changed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, leases, read := []string{}, 0, false
			err := a.view(cmd.Context(), func(tx *store.Tx) error {
				found, leases, read = append(found, tx.Check()...), tx.Len(), true
				return nil
			})
			if err != nil {
				return err
			}
			if a.output == "json" {
				if err := a.printJSON(checked{leases, found}); err != nil {
					return err
				}
			} else {
				for _, f := range found {
					fmt.Fprintln(a.Stdout, f)
				}
			}
			if len(found) > 0 {
				return errProblems
			}
			switch {
			case a.output == "json":
			case read:
				fmt.Fprintf(a.Stdout, "no problems found: %d leases\n", leases)
			default:
				fmt.Fprintf(a.Stdout, "there is no store in %s: the plugin was never used\n", a.Dirs.State)
			}
			return nil
		},
	}
}
