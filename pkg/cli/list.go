package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) list() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the addresses that are in use or held",
		Long: `List the leases of this node. An address is Bound to a container, or Held for a pod
that is away. "Held (cool-down)" is a short hold of a pod without retention. The
column FOR has reservation names, if a lease has one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			leases, err := a.leases(cmd.Context(), func(l lease.Lease) bool { return all || !l.Lapsed(a.Clock()) })
			if err != nil {
				return err
			}
			return a.print(leases)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "include expired holds")
	return c
}

// leases returns the leases that match the filters and for which keep reports true.
func (a *app) leases(ctx context.Context, keep func(lease.Lease) bool) (out []lease.Lease, err error) {
	err = a.view(ctx, func(tx *store.Tx) error {
		out = nil
		tx.All(func(l lease.Lease, err error) bool {
			if err != nil {
				a.say("%v", err)
			} else if a.selected(l) && keep(l) {
				out = append(out, l)
			}
			return true
		})
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
	named := slices.ContainsFunc(rows, func(r row) bool { return r.Reservation != "" })
	return printRows(a, rows, func(r row) (narrow, wide []cell) {
		narrow = []cell{{"NETWORK", r.Network}, {"ADDRESS", r.Address}, {"POD", r.pod()}, {"INTERFACE", r.Interface},
			{"STATE", r.state()}, {"UNTIL", text(r.Until)}, {"CONTAINER", short(r.Container)}}
		if named {
			narrow = append(narrow, cell{"FOR", r.Reservation})
		}
		return narrow, []cell{{"WINDOW", r.Window}, {"UID", r.UID}, {"NETNS", r.Netns}, {"ID", r.ID}}
	})
}
