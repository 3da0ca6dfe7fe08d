package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) check() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Prove that the store is sound",
		Long: `Read the whole store and prove it: its pages, the checksum and the invariant of
each record, and that every index says what the records say. Exit status 1
means that something is wrong; nothing is changed.`,
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
			fmt.Fprintf(a.Stdout, "sound: %d leases\n", leases)
			return nil
		},
	}
}
