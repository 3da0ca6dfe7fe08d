package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) list() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "list [address | namespace/pod]",
		Short: "List the addresses that are in use or held",
		Long: `List the leases of this node, or those of an address or a pod. An address is Bound to
a container, or Held for a pod that is away. "Held (cool-down)" is a short hold of a
pod without retention. The column FOR has reservation names.`,
		Example: "  leasectl list\n  leasectl list db/db-0 -o json\n  leasectl list --state=held",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.parse(args); err != nil {
				return err
			}
			leases, err := a.leases(cmd.Context())
			if err != nil {
				return err
			}
			leases = slices.DeleteFunc(leases, func(l lease.Lease) bool { return !all && l.Lapsed(a.Clock()) })
			if err = a.print(leases); err == nil && len(args) > 0 && len(leases) == 0 {
				err = errNoLease
			}
			return err
		},
	}
	a.outputFlag(c)
	a.networkFlag(c)
	a.reserveAsFlag(c)
	a.stateFlag(c)
	c.Flags().BoolVar(&all, "all", false, "include expired holds")
	return c
}

// leases returns the leases that match the filters.
func (a *app) leases(ctx context.Context) (out []lease.Lease, err error) {
	err = a.view(ctx, func(tx *store.Tx) error {
		out = nil
		for l, err := range tx.All {
			if err != nil {
				a.say("%v", err)
			} else if a.selected(l) {
				out = append(out, l)
			}
		}
		return nil
	})
	return out, err
}

func (a *app) print(leases []lease.Lease) error {
	now := a.Clock()
	rows := make([]row, len(leases))
	for i, l := range leases {
		rows[i] = rowOf(l, now)
	}
	return printRows(a, rows, "NETWORK ADDRESS POD INTERFACE STATE UNTIL CONTAINER FOR", func(r row) []string {
		return []string{r.Network, r.Address, r.pod(), r.Interface, r.state(), text(r.Until), short(r.Container),
			r.Reservation}
	})
}

var errNoLease = errors.New("no lease on this node is what the arguments and flags select; leasectl history shows " +
	"former ones")
