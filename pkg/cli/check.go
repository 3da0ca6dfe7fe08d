package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// checked is the JSON form of the result of check. Its fields are a stable interface.
type checked struct {
	Leases   int      `json:"leases"`
	Problems []string `json:"problems"`
}

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
			err := a.view(cmd.Context(), func(tx *store.Tx) error {
				found, leases, read = append(found, tx.Check()...), tx.Len(), true
				return nil
			})
			if err != nil {
				return err
			}
			switch {
			case a.output == "json":
				err = a.printJSON(checked{leases, found})
			case !read:
				a.step("there is no store in %s: the plugin was never used", a.Dirs.State)
			case len(found) == 0:
				a.step("no problems found: %d leases", leases)
			default:
				a.step("%s", strings.Join(found, "\n"))
			}
			if len(found) > 0 {
				err = errors.Join(err, errProblems)
			}
			return err
		},
	}
	a.outputFlag(c)
	return c
}
