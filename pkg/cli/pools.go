package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) pools() *cobra.Command {
	c := &cobra.Command{
		Use:   "pools",
		Short: "Show how many addresses each network has, and how many are in use",
		Long: `Show the size of each range set of this node's networks, and how many of its
addresses are bound to containers, held for pods that are away, and free. FREE
includes those in cool-down, the short hold of pods without retention: they are
assigned when no other is left.

An interface gets one address of each range set of its network. The size is known
from the first ADD of this version on. It is that of the last ADD's configuration.`,
		Example: "  leasectl pools\n  leasectl pools --network cbr0 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows := []poolRow{}
			err := a.view(cmd.Context(), func(tx *store.Tx) error {
				rows = a.poolRows(tx.Usage())
				return nil
			})
			if err != nil {
				return err
			}
			return a.printPools(rows)
		},
	}
	a.outputFlag(c)
	a.networkFlag(c)
	return c
}

// poolRow is the JSON form of the usage of a range set. Its fields are a stable interface. Size and
// Free are nil if the ranges are not known.
type poolRow struct {
	Network  string   `json:"network"`
	DataDir  string   `json:"dataDir"`
	Ranges   []string `json:"ranges"`
	Size     *uint64  `json:"size"`
	Bound    uint64   `json:"bound"`
	Held     uint64   `json:"held"`
	CoolDown uint64   `json:"coolDown"`
	Free     *uint64  `json:"free"`
}

// poolRows returns the usage of the range sets that --network selects.
func (a *app) poolRows(all []store.Usage) []poolRow {
	rows := []poolRow{}
	for _, u := range all {
		if a.network != "" && u.Pool.Network != a.network {
			continue
		}
		r := poolRow{Network: u.Pool.Network, DataDir: u.Pool.DataDir, Ranges: []string{}, Bound: u.Bound, Held: u.Held,
			CoolDown: u.CoolDown}
		for _, one := range u.Ranges {
			r.Ranges = append(r.Ranges, one.String())
		}
		if u.Ranges != nil {
			r.Size, r.Free = &u.Size, &u.Free
		}
		rows = append(rows, r)
	}
	return rows
}

func (a *app) printPools(rows []poolRow) error {
	number := func(n *uint64) string {
		if n == nil {
			return ""
		}
		return strconv.FormatUint(*n, 10)
	}
	return printRows(a, rows, "NETWORK RANGES SIZE BOUND HELD COOL-DOWN FREE", func(r poolRow) []string {
		ranges := strings.Join(r.Ranges, ",")
		if more := len(r.Ranges) - 2; more > 0 {
			ranges = fmt.Sprintf("%s,%s and %d more", r.Ranges[0], r.Ranges[1], more)
		}
		return []string{r.Network, ranges, number(r.Size), number(&r.Bound), number(&r.Held), number(&r.CoolDown),
			number(r.Free)}
	})
}
