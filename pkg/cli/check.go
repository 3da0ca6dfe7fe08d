package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) check() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the integrity of the store",
		Long: `Read the whole store and check its pages, the checksum and the invariants of each
record, and that the indexes match the records. Every problem is printed, and the
exit status is then 1. Nothing is changed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var found []string
			leases := 0
			err := a.view(cmd.Context(), func(tx *store.Tx) error {
				found, leases = tx.Check(), tx.Len()
				return nil
			})
			if err != nil {
				return err
			}
			for _, f := range found {
				fmt.Fprintln(a.Stdout, f)
			}
			if len(found) > 0 {
				return errProblems
			}
			fmt.Fprintf(a.Stdout, "no problems found: %d leases\n", leases)
			return nil
		},
	}
}
