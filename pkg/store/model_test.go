package store

import (
	"bytes"
	"cmp"
	"errors"

	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

var (
	modelPools = []lease.Pool{
		{DataDir: "/a", Network: "net"}, {DataDir: "/b", Network: "net"}, {DataDir: "/a", Network: "other"},
	}
	modelAddrs = []netip.Addr{
		netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.255"),
		netip.MustParseAddr("10.0.1.0"), netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("fd00::1"),
		netip.MustParseAddr("fd00::ff"),
	}
)

// model is a store as a map, without indexes.
type model struct {
	leases  map[lease.Place]lease.Lease
	damaged map[lease.Place]bool
}

// in returns the leases that can be read and match, in the order of All.
func (m model) in(tx *Tx, match func(lease.Lease) bool) []lease.Lease {
	var out []lease.Lease
	for at, l := range m.leases {
		if !m.damaged[at] && match(l) {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b lease.Lease) int {
		return bytes.Compare(leaseKey(tx.pools[a.Pool], a.Address), leaseKey(tx.pools[b.Pool], b.Address))
	})
	return out
}

func modelLease(t *rapid.T, at lease.Place) lease.Lease {
	l := lease.Lease{
		ID: "00112233445566aa", Pool: at.Pool, Address: at.Address, State: lease.Bound, BoundAt: t0,
		Set:       rapid.SampledFrom([]string{"s1", "s2"}).Draw(t, "set"),
		Namespace: rapid.SampledFrom([]string{"db", "web"}).Draw(t, "namespace"),
		Name:      rapid.SampledFrom([]string{"p", "p-0"}).Draw(t, "name"), UID: "u",
		Holder: lease.Holder{ContainerID: rapid.SampledFrom([]string{"c", "c1"}).Draw(t, "container"),
			IfName: rapid.SampledFrom([]string{"eth0", "eth1"}).Draw(t, "interface"), BootID: "b1"},
		Superseded: rapid.Bool().Draw(t, "superseded"),
		// A reservation name may be that of a pod.
		ReserveAs: rapid.SampledFrom([]string{"", "", "p", "r"}).Draw(t, "reservation"),
	}
	if rapid.Bool().Draw(t, "held") {
		l.State, l.ReleasedAt, l.IsHold = lease.Held, t0, !l.Superseded && rapid.Bool().Draw(t, "hold")
		l.Hold = rapid.SampledFrom([]lease.Window{lease.Window(time.Second), lease.Window(time.Minute),
			lease.Forever}).Draw(t, "hold")
	} else {
		l.Leaving = !l.Superseded && l.ReserveAs != "" && rapid.Bool().Draw(t, "leaving")
	}
	return l
}

// TestQueriesMatchTheModel compares every query with a scan of a map, after random writes and with
// damaged records.
func TestQueriesMatchTheModel(t *testing.T) {
	s := open(t)
	rapid.Check(t, func(t *rapid.T) {
		m := model{map[lease.Place]lease.Lease{}, map[lease.Place]bool{}}
		done := errors.New("rolled back")
		err := s.Update(t.Context(), func(tx *Tx) error {
			for range rapid.IntRange(1, 12).Draw(t, "writes") {
				p := rapid.SampledFrom(modelPools).Draw(t, "pool")
				at := lease.Place{Pool: p, Address: rapid.SampledFrom(modelAddrs).Draw(t, "address")}
				l := lease.Lease{}
				if rapid.IntRange(0, 3).Draw(t, "kind") > 0 {
					l = modelLease(t, at)
					m.leases[at] = l
				} else {
					delete(m.leases, at)
				}
				must.Succeed(t, tx.Put(at.Pool, at.Address, l))
			}
			m.compare(t, tx)
			twice := func(s string) bool { return strings.Contains(s, " has both ") }
			check.Empty(t, slices.DeleteFunc(tx.Check(), twice))
			for _, at := range slices.SortedFunc(maps.Keys(m.leases), func(a, b lease.Place) int {
				return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Pool.DataDir, b.Pool.DataDir),
					cmp.Compare(a.Pool.Network, b.Pool.Network))
			}) {
				if rapid.IntRange(0, 4).Draw(t, "damage") == 0 {
					m.damaged[at] = true
					k := leaseKey(tx.pools[at.Pool], at.Address)
					must.Succeed(t, tx.bucket(bucketLeases).Put(k, []byte("damaged")))
				}
			}
			m.compare(t, tx)
			if len(m.damaged) > 0 {
				must.Succeed(t, tx.Reindex())
				for at := range m.damaged {
					if a, free := tx.Free(at.Pool, at.Address, at.Address); free {
						t.Errorf("%s with a damaged record is free", a)
					}
				}
			}
			return done
		})
		check.Is(t, err, done)
	})
}

func sameLeases(t *rapid.T, got, want []lease.Lease, name string) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b lease.Lease) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("%s:\n%v, want\n%v", name, got, want)
	}
}

func (m model) compare(t *rapid.T, tx *Tx) {
	all := m.in(tx, func(lease.Lease) bool { return true })
	var got []lease.Lease
	damaged := map[lease.Place]bool{}
	tx.All(func(l lease.Lease, err error) bool {
		if err == nil {
			got = append(got, l)
		} else if damaged[l.Place()] = true; l.State != lease.None || !errors.Is(err, ErrDamaged) {
			t.Errorf("a damaged record: %v, %v", l, err)
		}
		return true
	})
	sameLeases(t, got, all, "all")
	if !maps.Equal(damaged, m.damaged) || tx.Len() != len(m.leases) {
		t.Errorf("damaged: %v of %d, want %v of %d", damaged, tx.Len(), m.damaged, len(m.leases))
	}
	seen := 0
	tx.All(func(lease.Lease, error) bool { seen++; return seen < 2 })
	check.Equal(t, seen, min(2, len(m.leases)), "leases that All goes on for")
	isBound := func(l lease.Lease) bool { return l.State == lease.Bound }
	sameLeases(t, slices.Collect(tx.Bound()), m.in(tx, isBound), "bound")

	totals := map[string]Counts{}
	for _, p := range modelPools {
		of := func(match func(lease.Lease) bool) []lease.Lease {
			return m.in(tx, func(l lease.Lease) bool { return l.Pool == p && match(l) })
		}
		sameLeases(t, tx.InPool(p), of(func(lease.Lease) bool { return true }), "in pool")
		m.compareHolds(t, tx, p)
		m.compareKeys(t, tx, p)
		if len(m.damaged) > 0 {
			continue // their counts and ends are those before the damage
		}
		ends := of(func(l lease.Lease) bool { return l.State == lease.Held && l.Hold < lease.Forever })
		slices.SortStableFunc(ends, func(a, b lease.Lease) int { return cmp.Compare(a.Hold, b.Hold) })
		sameLeases(t, tx.Ending(p, 99), ends, "ending")
		sameLeases(t, tx.Ending(p, 1), ends[:min(1, len(ends))], "the first to end")
		for _, set := range []string{"s1", "s2"} {
			var c Counts
			for _, l := range of(func(l lease.Lease) bool { return l.Set == set }) {
				switch {
				case l.State == lease.Bound:
					c.Bound++
				case l.IsHold:
					c.Held++
				default:
					c.CoolDown++
				}
			}
			check.Equal(t, tx.Counts(p, set), c, "counts of", set)
			sum := totals[p.Network]
			totals[p.Network] = Counts{sum.Bound + c.Bound, sum.Held + c.Held, sum.CoolDown + c.CoolDown}
		}
	}
	maps.DeleteFunc(totals, func(_ string, c Counts) bool { return c == Counts{} })
	stored := tx.Totals()
	maps.DeleteFunc(stored, func(_ string, c Counts) bool { return c == Counts{} })
	if len(m.damaged) == 0 && !maps.Equal(stored, totals) {
		t.Errorf("totals %v, want %v", stored, totals)
	}
}

// compareHolds compares the holds of neighbouring addresses, of which the first may be unusable.
func (m model) compareHolds(t *rapid.T, tx *Tx, p lease.Pool) {
	for first := 1; first < 3; first++ {
		usable := func(a netip.Addr) bool { return slices.Contains(modelAddrs[first:3], a) }
		of := func(state lease.State) []lease.Lease {
			return m.in(tx, func(l lease.Lease) bool { return l.Pool == p && l.State == state && usable(l.Address) })
		}
		held, bound, err := tx.HoldsIn(p, modelAddrs[1], modelAddrs[2], usable)
		sameLeases(t, held, of(lease.Held), "holds")
		check.Equal(t, bound, len(of(lease.Bound)), "bound")
		damaged := slices.ContainsFunc(slices.Collect(maps.Keys(m.damaged)), func(at lease.Place) bool {
			return at.Pool == p && usable(at.Address)
		})
		check.Equal(t, damaged, errors.Is(err, ErrDamaged), "HoldsIn with a damaged record:", err)
	}
}

// compareKeys compares the queries that use an index. They fail if a record that they need is
// damaged.
func (m model) compareKeys(t *rapid.T, tx *Tx, p lease.Pool) {
	query := func(name string, get func() ([]lease.Lease, error), match func(lease.Lease) bool,
		reads ...func(lease.Lease) bool) { // what the query reads, if that is more than what it returns
		needsDamaged := false
		for at := range m.damaged {
			needsDamaged = needsDamaged || append(reads, match)[0](m.leases[at])
		}
		got, err := get()
		if needsDamaged != errors.Is(err, ErrDamaged) || !needsDamaged && err != nil {
			t.Errorf("%s: %v, a damaged record: %v", name, err, needsDamaged)
		}
		if err == nil {
			slices.SortFunc(got, func(a, b lease.Lease) int {
				return bytes.Compare(leaseKey(tx.pools[a.Pool], a.Address), leaseKey(tx.pools[b.Pool], b.Address))
			})
			sameLeases(t, got, m.in(tx, match), name)
		}
	}
	for _, a := range modelAddrs {
		l, err := tx.Get(p, a)
		at := lease.Place{Pool: p, Address: a}
		if (err != nil) != m.damaged[at] || err == nil && !reflect.DeepEqual(l, m.leases[at]) {
			t.Errorf("get %s: %v, %v, want %v", a, l, err, m.leases[at])
		}
		for at.Address.IsValid() && m.leases[at].State != lease.None {
			at.Address = at.Address.Next()
		}
		for _, last := range modelAddrs {
			isIn := at.Address.IsValid() && at.Address.Compare(last) <= 0
			if free, found := tx.Free(p, a, last); found != isIn || found && free != at.Address {
				t.Errorf("free from %s to %s: %s %v, want %s", a, last, free, found, at.Address)
			}
		}
	}
	for _, namespace := range []string{"db", "web"} {
		for _, name := range []string{"p", "r", "p-0"} {
			ofName := func(l lease.Lease) bool {
				return !l.Superseded && l.Namespace == namespace && l.ReserveAs == name
			}
			for _, ifName := range []string{"eth0", "eth1"} {
				key := lease.Key{Pool: p, Namespace: namespace, ReserveAs: name, IfName: ifName}
				query("by named key", func() ([]lease.Lease, error) { return tx.ByKey(key) },
					func(l lease.Lease) bool { return ofName(l) && l.Key() == key })
			}
		}
		for _, set := range []string{"s1", "s2"} {
			all, inSet := tx.HoldsOf(lease.Lease{Namespace: namespace, Pool: p, Set: set})
			holds := m.in(tx, func(l lease.Lease) bool { return l.IsHold && l.Namespace == namespace })
			of := slices.DeleteFunc(slices.Clone(holds), func(l lease.Lease) bool {
				return l.Pool != p || l.Set != set
			})
			addresses := map[lease.Place]bool{} // of two data directories of a network
			for _, l := range holds {
				addresses[lease.Place{Pool: lease.Pool{Network: l.Pool.Network}, Address: l.Address}] = true
			}
			check.Equal(t, all, len(addresses), "holds")
			check.Equal(t, inSet, len(of), "holds in set", set)
		}
	}
	for _, name := range []string{"p", "p-0", ""} {
		for _, namespace := range []string{"db", "web"} {
			ofPod := func(l lease.Lease) bool {
				return !l.Superseded && l.Namespace == namespace && l.Name == name
			}
			query("by pod", func() ([]lease.Lease, error) { return tx.ByPod(namespace, name) }, ofPod)
			for _, ifName := range []string{"eth0", "eth1"} {
				key := lease.Key{Pool: p, Namespace: namespace, Name: name, IfName: ifName}
				query("by key", func() ([]lease.Lease, error) { return tx.ByKey(key) },
					func(l lease.Lease) bool { return ofPod(l) && l.Key() == key },
					func(l lease.Lease) bool { return ofPod(l) && l.Pool == p && l.Holder.IfName == ifName })
			}
		}
	}
	for _, id := range []string{"c", "c1", ""} {
		for _, ifName := range []string{"eth0", "eth1"} {
			query("by holder", func() ([]lease.Lease, error) { return tx.ByHolder(id, ifName) },
				func(l lease.Lease) bool {
					return l.State == lease.Bound && l.Holder.ContainerID == id && l.Holder.IfName == ifName
				})
		}
	}
}
