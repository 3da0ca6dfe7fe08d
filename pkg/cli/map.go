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
		Long: `Draw the range sets of each network, 64 addresses in a line: B is bound to a container,
H held for a pod that is away, c in cool-down (the short hold of pods without
retention), and a dot is free. Lines of which all addresses are free are left out. The
free addresses that are counted include those in cool-down, which are assigned when no
other is left.

An interface gets one address of each range set of its network. The ranges are those of
the last ADD's configuration.`,
		Example: "  leasectl map\n  leasectl map --network=cbr0 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var picture strings.Builder
			rows := []poolRow{}
			err := a.view(cmd.Context(), func(tx *store.Tx) error {
				picture.Reset()
				rows = rows[:0]
				for _, u := range tx.Usage() {
					if a.network == "" || u.Pool.Network == a.network {
						rows = append(rows, poolRowOf(u))
						draw(&picture, u, a.letters(tx.InPool(u.Pool)))
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.printJSON(rows)
			}
			fmt.Fprint(a.Stdout, &picture)
			return nil
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

func poolRowOf(u store.Usage) poolRow {
	r := poolRow{Network: u.Pool.Network, DataDir: u.Pool.DataDir, Ranges: []string{}, Bound: u.Bound, Held: u.Held,
		CoolDown: u.CoolDown}
	for _, one := range u.Ranges {
		r.Ranges = append(r.Ranges, one.String())
	}
	if u.Ranges != nil {
		r.Size, r.Free = &u.Size, &u.Free
	}
	return r
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

// draw writes the numbers and the map of a range set.
func draw(w io.Writer, u store.Usage, letters map[netip.Addr]rune) {
	fmt.Fprintf(w, "network %s, %s: B bound %d, H held %d, c in cool-down %d", u.Pool.Network,
		cmp.Or(strings.Join(poolRowOf(u).Ranges, ","), "ranges not known"), u.Bound, u.Held, u.CoolDown)
	if u.Ranges != nil {
		fmt.Fprintf(w, "; free %d of %d", u.Free, u.Size)
	}
	fmt.Fprintln(w)
	for _, r := range u.Ranges {
		drawRange(w, r, letters)
	}
}

// drawRange writes the map of a range. Each line begins at a multiple of mapWidth. Addresses before
// the range are spaces.
func drawRange(w io.Writer, r pool.Range, letters map[netip.Addr]rune) {
	in := func(a netip.Addr) bool { return r.Start.Compare(a) <= 0 && a.Compare(r.End) <= 0 }
	starts := map[netip.Addr]bool{}
	for addr := range letters {
		if in(addr) {
			starts[lineOf(addr)] = true
		}
	}
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
