package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// mapWidth is the number of addresses in a line of a map, a power of two.
const mapWidth = 64

// The letters of the states in a map, and their words in its legend.
const (
	mapFree     = '.'
	mapBound    = 'B'
	mapHeld     = 'H'
	mapCoolDown = 'c'
)

func (a *app) mapCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "map",
		Short: "Draw which addresses of each network are bound, held, in cool-down and free",
		Long: `Draw the ranges of each network, 64 addresses in a line: B is bound to a container,
H held for a pod that is away, c in cool-down (the short hold of pods without
retention), and a dot is free. Lines of which all addresses are free are left out.`,
		Example: "  leasectl map\n  leasectl map --network=cbr0",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var picture strings.Builder
			err := a.view(cmd.Context(), func(tx *store.Tx) error {
				picture.Reset()
				for _, u := range tx.Usage() {
					if a.network == "" || u.Pool.Network == a.network {
						letters := a.letters(tx.InPool(u.Pool))
						for _, r := range u.Ranges {
							draw(&picture, u.Pool.Network, r, letters)
						}
					}
				}
				return nil
			})
			fmt.Fprint(a.Stdout, &picture)
			return err
		},
	}
	a.networkFlag(c)
	return c
}

// letters returns the letters of the addresses that are not free.
func (a *app) letters(leases []lease.Lease) map[netip.Addr]rune {
	letters, now := map[netip.Addr]rune{}, a.Clock()
	for _, l := range leases {
		switch {
		case l.State == lease.Bound:
			letters[l.Address] = mapBound
		case l.Lapsed(now):
		case l.Firm:
			letters[l.Address] = mapHeld
		default:
			letters[l.Address] = mapCoolDown
		}
	}
	return letters
}

// draw writes the map of a range. Each line begins at a multiple of mapWidth. Addresses before the
// range are spaces.
func draw(w io.Writer, network string, r pool.Range, letters map[netip.Addr]rune) {
	in := func(a netip.Addr) bool { return r.Start.Compare(a) <= 0 && a.Compare(r.End) <= 0 }
	count, starts := map[rune]int{}, map[netip.Addr]bool{}
	for addr, letter := range letters {
		if in(addr) {
			count[letter]++
			starts[lineOf(addr)] = true
		}
	}
	fmt.Fprintf(w, "network %s, %s-%s: B bound %d, H held %d, c in cool-down %d\n", network, r.Start, r.End,
		count[mapBound], count[mapHeld], count[mapCoolDown])
	for _, at := range slices.SortedFunc(maps.Keys(starts), netip.Addr.Compare) {
		line := fmt.Sprintf("%-*s", len(r.End.String())+3, at)
		for n := 0; n < mapWidth && at.Compare(r.End) <= 0; n, at = n+1, at.Next() {
			if in(at) {
				line += string(cmp.Or(letters[at], mapFree))
			} else {
				line += " "
			}
		}
		fmt.Fprintln(w, line)
	}
}

// lineOf returns the first address of the line that contains an address.
func lineOf(a netip.Addr) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] &^= mapWidth - 1
	start, _ := netip.AddrFromSlice(b)
	return start
}
