package node

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) pools() *cobra.Command {
	c := &cobra.Command{
		Use:   "pools",
		Short: "Show how many addresses of each network are bound, held, in cool-down and free",
		Long: `Count the addresses of each range set of each network: those that are bound to a
container, held for a pod that is away, and in cool-down (the short hold of pods
without retention). The free addresses that are counted include those in cool-down,
which are assigned when no other is left.

An interface gets one address of each range set of its network. The ranges are those of
the last ADD's configuration.`,
		Example: "  leasectl pools\n  leasectl pools --network=cbr0 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows := []cli.Pool{}
			err := a.store().View(cmd.Context(), func(tx *store.Tx) error {
				rows = rows[:0]
				for _, u := range tx.Usage() {
					if a.network == "" || u.Pool.Network == a.network {
						rows = append(rows, poolRowOf(u))
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			const heads = "NETWORK RANGES SIZE BOUND HELD COOL-DOWN FREE"
			return cli.PrintRows(a.App, rows, heads, func(r cli.Pool) []string {
				return []string{r.Network, strings.Join(r.Ranges, ","), text(r.Size), text(&r.Bound), text(&r.Held),
					text(&r.CoolDown), text(r.Free)}
			})
		},
	}
	a.OutputFlag(c)
	a.networkFlag(c)
	return c
}

func poolRowOf(u store.Usage) cli.Pool {
	r := cli.Pool{Network: u.Pool.Network, DataDir: u.Pool.DataDir, Ranges: []string{}, Bound: u.Bound, Held: u.Held,
		CoolDown: u.CoolDown}
	for _, one := range u.Ranges {
		r.Ranges = append(r.Ranges, one.String())
	}
	if u.Ranges != nil {
		r.Size, r.Free = &u.Size, &u.Free
	}
	return r
}
