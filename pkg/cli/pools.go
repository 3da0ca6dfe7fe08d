package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) pools() *cobra.Command {
	return &cobra.Command{
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
				rows = poolRows(tx.Usage(), a.network)
				return nil
			})
			if err != nil {
				return err
			}
			return a.printPools(rows)
		},
	}
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

func poolRows(all []store.Usage, network string) []poolRow {
	all = slices.DeleteFunc(all, func(u store.Usage) bool { return network != "" && u.Pool.Network != network })
	rows := make([]poolRow, len(all))
	for i, u := range all {
		rows[i] = poolRow{Network: u.Pool.Network, DataDir: u.Pool.DataDir, Ranges: []string{}, Bound: u.Bound,
			Held: u.Held, CoolDown: u.CoolDown}
		for _, r := range u.Ranges {
			rows[i].Ranges = append(rows[i].Ranges, r.String())
		}
		if u.Ranges != nil {
			rows[i].Size, rows[i].Free = &u.Size, &u.Free
		}
	}
	return rows
}

func (a *app) printPools(rows []poolRow) error {
	if a.output == "json" {
		return printJSON(a.Stdout, rows)
	}
	number := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatUint(*n, 10)
	}
	return table(a.Stdout, func(w io.Writer) {
		head := "NETWORK\tRANGES\tSIZE\tBOUND\tHELD\tCOOL-DOWN\tFREE"
		if a.output == "wide" {
			head += "\tDATA DIRECTORY"
		}
		fmt.Fprintln(w, head)
		for _, r := range rows {
			ranges := strings.Join(r.Ranges, ",")
			if more := len(r.Ranges) - 2; more > 0 && a.output != "wide" {
				ranges = fmt.Sprintf("%s,%s and %d more", r.Ranges[0], r.Ranges[1], more)
			}
			fmt.Fprint(w, strings.Join([]string{r.Network, dash(ranges), number(r.Size), number(&r.Bound),
				number(&r.Held), number(&r.CoolDown), number(r.Free)}, "\t"))
			if a.output == "wide" {
				fmt.Fprint(w, "\t"+r.DataDir)
			}
			fmt.Fprintln(w)
		}
	})
}
