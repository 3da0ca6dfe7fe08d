package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// mapWidth is the number of addresses in a line of a map, a power of two. In a range of more than
// mapMax addresses, only the lines with a lease are drawn.
const (
	mapWidth = 64
	mapMax   = 1 << 14
)

// The letters of the states in a map, and their words in its legend.
const (
	mapFree     = '.'
	mapBound    = 'B'
	mapHeld     = 'H'
	mapCoolDown = 'c'
)

func (a *app) mapCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "map",
		Short: "Draw which addresses of each network are bound, held, in cool-down and free",
		Long: `Draw the ranges of each network, 64 addresses in a line: B is bound to a container,
H held for a pod that is away, c in cool-down (the short hold of pods without
retention), and a dot is free. Of ranges of more than 16384 addresses, lines without a
lease are left out.`,
		Example: "  leasectl map\n  leasectl map --network cbr0 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			drawn := []drawing{}
			err := a.view(cmd.Context(), func(tx *store.Tx) error {
				drawn = a.draw(tx)
				return nil
			})
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.printJSON(drawn)
			}
			for _, d := range drawn {
				a.printMap(d)
			}
			return nil
		},
	}
}

// drawing is the JSON form of the map of one range. Its fields are a stable interface. In a long
// range, lines without a lease are omitted.
type drawing struct {
	Network string    `json:"network"`
	First   string    `json:"first"`
	Last    string    `json:"last"`
	Lines   []mapLine `json:"lines"`
}

// mapLine is a line of a map: the first address, and one letter for each address from there on.
type mapLine struct {
	First     string `json:"first"`
	Addresses string `json:"addresses"`
}

// draw returns the maps of all ranges that the flag --network selects.
func (a *app) draw(tx *store.Tx) []drawing {
	out := []drawing{}
	now := a.Clock()
	for _, u := range tx.Usage() {
		if a.network != "" && u.Pool.Network != a.network {
			continue
		}
		states := map[netip.Addr]rune{}
		for _, l := range tx.InPool(u.Pool) {
			switch {
			case l.State == lease.Bound:
				states[l.Address] = mapBound
			case l.Lapsed(now):
			case l.Firm:
				states[l.Address] = mapHeld
			default:
				states[l.Address] = mapCoolDown
			}
		}
		for _, r := range u.Ranges {
			out = append(out, drawing{u.Pool.Network, r.Start.String(), r.End.String(),
				mapLines(r.Start, r.End, states)})
		}
	}
	return out
}

// mapLines returns the lines for the addresses from first to last. Each line begins at a multiple
// of mapWidth. Addresses before first are spaces. If there are more than mapMax addresses, only the
// lines with an address in states are returned.
func mapLines(first, last netip.Addr, states map[netip.Addr]rune) []mapLine {
	starts := map[netip.Addr]bool{}
	at := lineOf(first)
	for n := 0; at.IsValid() && at.Compare(last) <= 0; n += mapWidth {
		if n >= mapMax {
			clear(starts)
			for a := range states {
				if first.Compare(a) <= 0 && a.Compare(last) <= 0 {
					starts[lineOf(a)] = true
				}
			}
			break
		}
		starts[at] = true
		for range mapWidth {
			at = at.Next()
		}
	}
	lines := []mapLine{}
	for _, start := range slices.SortedFunc(maps.Keys(starts), netip.Addr.Compare) {
		line := mapLine{First: start.String()}
		for at := start; at.IsValid() && at.Compare(last) <= 0 && len(line.Addresses) < mapWidth; at = at.Next() {
			letter := cmp.Or(states[at], mapFree)
			if at.Compare(first) < 0 {
				letter = ' '
			}
			line.Addresses += string(letter)
		}
		lines = append(lines, line)
	}
	return lines
}

// lineOf returns the first address of the line that contains an address.
func lineOf(a netip.Addr) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] &^= mapWidth - 1
	start, _ := netip.AddrFromSlice(b)
	return start
}

func (a *app) printMap(d drawing) {
	var picture strings.Builder
	w := tabwriter.NewWriter(&picture, 0, 4, 3, ' ', 0)
	count := map[rune]int{}
	for _, l := range d.Lines {
		fmt.Fprintf(w, "%s\t%s\n", l.First, l.Addresses)
		for _, letter := range l.Addresses {
			count[letter]++
		}
	}
	w.Flush() // writing to a strings.Builder cannot fail
	fmt.Fprintf(a.Stdout, "network %s, %s-%s: . free %d, B bound %d, H held %d, c in cool-down %d\n%s", d.Network,
		d.First, d.Last, count[mapFree], count[mapBound], count[mapHeld], count[mapCoolDown], &picture)
}
