package store

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/test/check"
)

// ranges returns a range set of host-local's notation, as in "10.0.0.2-10.0.0.9,10.0.1.2-10.0.1.9".
// The gateway is 10.0.0.1 or fd00::1.
func ranges(text string) pool.Set {
	var all []pool.Range
	for part := range strings.SplitSeq(text, ",") {
		start, end, _ := strings.Cut(part, "-")
		r := pool.Range{Start: netip.MustParseAddr(start), End: netip.MustParseAddr(end)}
		r.Subnet, r.Gateway = netip.MustParsePrefix("10.0.0.0/8"), netip.MustParseAddr("10.0.0.1")
		if r.Start.Is6() {
			r.Subnet, r.Gateway = netip.MustParsePrefix("fd00::/8"), netip.MustParseAddr("fd00::1")
		}
		all = append(all, r)
	}
	set, err := pool.NewSet(all...)
	if err != nil {
		panic(err)
	}
	return set
}

// of returns a lease of a set: "bound", "held", or "cool-down".
func of(state, addr, set string) lease.Lease {
	l := fresh(addr, "pod-"+addr, "c-"+addr)
	l.Set = set
	if state == "cool-down" {
		l.Window = 0
	}
	if state == "bound" {
		return l
	}
	held, err := lease.Apply(l, lease.Release{Holder: l.Holder}, t0)
	if err != nil {
		panic(err)
	}
	return held
}

func (u Usage) text() string {
	return fmt.Sprintf("%s %d=%d+%d+%d (%d)", u.Ranges, u.Size, u.Bound, u.Held, u.Free, u.CoolDown)
}

func TestUsage(t *testing.T) {
	const v4, v6 = "10.0.0.1-10.0.0.9,10.0.1.0-10.0.1.9", "fd00::-fdff::"
	wide := ranges("10.0.0.1-10.0.3.255").ID()
	for name, tt := range map[string]struct {
		sets   []string
		leases []lease.Lease
		want   string
	}{
		"no lease":         {[]string{v4}, nil, v4 + " 18=0+0+18 (0)"}, // the gateway cannot be assigned
		"ranges not known": {nil, []lease.Lease{of("bound", "10.0.0.5", ranges(v4).ID())}, " 0=1+0+0 (0)"},
		"each state": {[]string{v4}, []lease.Lease{
			of("bound", "10.0.0.5", ranges(v4).ID()), of("held", "10.0.1.9", ranges(v4).ID()),
			of("cool-down", "10.0.1.0", ranges(v4).ID()),
		}, v4 + " 18=1+1+16 (1)"},
		"imported, or of former ranges": {[]string{v4}, []lease.Lease{
			of("bound", "10.0.0.5", ""), of("held", "10.0.1.9", wide), of("cool-down", "10.0.1.0", wide),
		}, v4 + " 18=1+1+16 (1)"},
		"outside of the ranges": {[]string{v4}, []lease.Lease{
			of("bound", "10.0.0.10", ""), of("held", "10.0.2.0", ""), of("bound", "10.9.0.1", ""),
		}, v4 + " 18=2+1+18 (0)"},
		"one of each family": {[]string{v6, v4}, []lease.Lease{
			of("held", "10.0.0.5", ranges(v4).ID()), of("held", "fd00::5", ranges(v6).ID()),
			of("bound", "10.0.0.6", ""), of("bound", "fd00::6", ""), of("cool-down", "10.0.0.7", ranges(v4).ID()),
		}, v4 + " 18=1+1+16 (1)\n" + v6 + " 9223372036854775807=1+1+9223372036854775805 (0)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			update(t, s, func(tx *Tx) error {
				if tt.sets != nil {
					if err := tx.SetRanges(testPool, sets(tt.sets...)); err != nil {
						return err
					}
				}
				for _, l := range tt.leases {
					if err := put(tx, l); err != nil {
						return err
					}
				}
				return nil
			})
			view(t, s, func(tx *Tx) {
				var got []string
				for _, u := range tx.Usage() {
					got = append(got, u.text())
				}
				check.Equal(t, strings.Join(got, "\n"), tt.want)
			})
		})
	}
}

func sets(texts ...string) (out []pool.Set) {
	for _, text := range texts {
		out = append(out, ranges(text))
	}
	return out
}

func TestUsageByNetwork(t *testing.T) {
	a, b := lease.Pool{DataDir: "/a", Network: "x"}, lease.Pool{DataDir: "/b", Network: "x"}
	c := lease.Pool{DataDir: "/a", Network: "y"}
	got := ByNetwork([]Usage{
		{Pool: a, Ranges: ranges("fd00::-fdff::"), Size: math.MaxInt64, Free: math.MaxInt64 - 5,
			Counts: Counts{Bound: 5}},
		{Pool: a, Ranges: ranges("10.0.0.2-10.0.0.9"), Size: 8, Free: 3,
			Counts: Counts{Bound: 4, Held: 1, CoolDown: 1}},
		{Pool: b, Ranges: ranges("fd00::-fdff::"), Size: math.MaxInt64, Free: math.MaxInt64,
			Counts: Counts{CoolDown: 2}},
		{Pool: c, Counts: Counts{Bound: 1}},
	})
	want := []string{"fd00::-fdff::,10.0.0.2-10.0.0.9,fd00::-fdff:: 9223372036854775807=4+1+9223372036854775807 (3)",
		" 0=1+0+0 (0)"}
	if len(got) != 2 || got[0].text() != want[0] || got[1].text() != want[1] {
		t.Errorf("%+v", got)
	}
}

// Check finds damaged ranges, and Reindex removes them.
func TestDamagedRangesAreFound(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"another address": func(v []byte) []byte { v[len(v)-1]++; return v },
		"cut":             func(v []byte) []byte { return v[:len(v)-1] },
		"no range":        func(v []byte) []byte { return v[:len(v)-8] },
		"another family":  func(v []byte) []byte { v[len(v)-9] = 6; return v },
		"cursor":          func(v []byte) []byte { v[countBytes] = 9; return v },
	} {
		t.Run(name, func(t *testing.T) {
			s, set := open(t), ranges("10.0.0.2-10.0.0.9")
			update(t, s, func(tx *Tx) error {
				if err := tx.SetRanges(testPool, []pool.Set{set}); err != nil {
					return err
				}
				if err := put(tx, of("bound", "10.0.0.5", set.ID())); err != nil {
					return err
				}
				k := setKey(tx.pools[testPool], set.ID())
				return tx.put(bucketSets, k, damage(bytes.Clone(tx.bucket(bucketSets).Get(k))))
			})
			view(t, s, func(tx *Tx) {
				if found := tx.Check(); len(found) != 1 || !strings.Contains(found[0], set.ID()) {
					t.Errorf("%q", found)
				}
				tx.Usage()
			})
			update(t, s, (*Tx).Reindex)
			view(t, s, func(tx *Tx) {
				if c, found := tx.Counts(testPool, set.ID()), tx.Check(); c != (Counts{Bound: 1}) || len(found) > 0 {
					t.Errorf("after Reindex: counts %+v, %q", c, found)
				}
			})
			update(t, s, func(tx *Tx) error { return tx.SetRanges(testPool, []pool.Set{set}) })
			view(t, s, func(tx *Tx) {
				if u := tx.Usage(); len(u) != 1 || u[0].Size != 8 || u[0].Bound != 1 {
					t.Errorf("%+v", u)
				}
			})
		})
	}
}
