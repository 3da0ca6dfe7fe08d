package node

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) check() *cobra.Command {
	c := &cobra.Command{
		Use:   "check",
		Short: "Check the integrity of the store",
		Long: `Read the whole store and check its pages, the checksum and the invariants of each
record, and that the indexes match the records. Every problem is printed, and the
exit status is then 1. Nothing is changed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, leases, read := []string{}, 0, false
			err := a.store().View(cmd.Context(), func(tx *store.Tx) error {
				found, leases, read = append(found, tx.Check()...), tx.Len(), true
				return nil
			})
			if err != nil {
				return err
			}
			switch {
			case a.Output == "json":
				err = a.PrintJSON(cli.Checked{Leases: leases, Problems: found})
			case !read:
				a.Step("there is no store in %s: the plugin was never used", a.Dirs.State)
			case len(found) == 0:
				a.Step("no problems found: %d leases", leases)
			default:
				a.Step("%s", strings.Join(found, "\n"))
			}
			if len(found) > 0 {
				err = errors.Join(err, cli.ErrProblems)
			}
			return err
		},
	}
	a.OutputFlag(c)
	return c
}
