package nodepools

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// poolWith returns the view of a NodeAddressPool. Each network is "name start end", with a link if
// there is a fourth word.
func poolWith(node string, networks ...string) *nodePool {
	p := &ipam.NodeAddressPool{}
	p.Name = node
	for _, text := range networks {
		w := strings.Fields(text)
		n := ipam.NetworkAddressPool{Name: w[0], Ranges: []ipam.AddressRange{{Start: w[1], End: w[2]}}}
		if len(w) > 3 {
			n.Link = w[3]
		}
		p.Status.Networks = append(p.Status.Networks, n)
	}
	return viewPool(p)
}

func TestSharedRanges(t *testing.T) {
	got := sharedRanges([]*nodePool{
		poolWith("node1", "lan 10.0.0.2 10.0.0.9 macvlan", "cbr0 10.1.0.2 10.1.0.9"),
		poolWith("node2", "office 10.0.0.8 10.0.0.20 ipvlan", "cbr0 10.1.0.2 10.1.0.9"),
		poolWith("node3", "lan 10.0.0.21 10.0.0.30 macvlan", "other 10.0.0.21 10.0.0.30 macvlan"),
		poolWith("node4", "lan 10.0.0.2 10.0.0.9"),
	})
	want := "map[node1:[{10.0.0.8 10.0.0.9 node2}] node2:[{10.0.0.8 10.0.0.9 node1}]]"
	check.Equal(t, fmt.Sprint(got), want)
}

// The nodes whose ranges are shared are named in their objects and in the metric, as long as they
// are.
func TestSharedRangesAreNamed(t *testing.T) {
	now := time.Now()
	r, a := poolsOf(t, setOf(t), &now), &api{}
	r.client = a
	pool := func(node, end string) *ipam.NodeAddressPool {
		return &ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: ipam.NodeAddressPoolStatus{
			Networks: []ipam.NetworkAddressPool{{Name: "lan", Link: "macvlan eth1",
				Ranges: []ipam.AddressRange{{Start: "10.0.0.2", End: end}}}}}}
	}
	pass := func(story, want string, shared int) {
		t.Helper()
		a.patches = nil
		for _, request := range []reconcile.Request{allRanges, control.RequestFor("node1")} {
			_, err := r.Reconcile(t.Context(), request)
			must.Succeed(t, err)
		}
		check.Equal(t, strings.Join(a.patches, ", "), want, story)
		check.Equal(t, testutil.CollectAndCount(r.sharedMetric), shared, story, "nodes in the metric")
	}
	must.Succeed(t, r.pools.Update(pool("node1", "10.0.0.9")))
	pass("one node", "", 0)
	must.Succeed(t, r.pools.Update(pool("node2", "10.0.0.5")))
	pass("two nodes", `node1 {"spec":{"reservations":null,"shared":[{"start":"10.0.0.2",`+
		`"end":"10.0.0.5","nodeName":"node2"}]}}`, 2)
	named := pool("node1", "10.0.0.9")
	named.Spec.Shared = r.shared["node1"]
	must.Succeed(t, r.pools.Update(named))
	pass("named", "", 2)
	must.Succeed(t, r.pools.Delete(pool("node2", "10.0.0.5")))
	pass("one node again", `node1 {"spec":{"reservations":null,"shared":null}}`, 0)
}

// Each range of which another node has an address is named, with such a node.
func TestSharedRangesAsCompared(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var pools []*nodePool
		for node := range rapid.IntRange(0, 4).Draw(rt, "nodes") {
			p := &nodePool{node: fmt.Sprint("node", node)}
			for range rapid.IntRange(0, 4).Draw(rt, "ranges") {
				start := rapid.IntRange(0, 20).Draw(rt, "start")
				at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }
				p.ranges = append(p.ranges, nodeRange{node: p.node, start: at(start),
					end: at(start + rapid.IntRange(0, 5).Draw(rt, "size")), isLinked: rapid.Bool().Draw(rt, "linked")})
			}
			pools = append(pools, p)
		}
		got := sharedRanges(pools)
		count := 0
		for _, p := range pools {
			for _, r := range p.ranges {
				var want []ipam.SharedRange
				for _, q := range pools {
					for _, o := range q.ranges {
						if r.isLinked && o.isLinked && p != q && !o.end.Less(r.start) && !r.end.Less(o.start) {
							want = append(want, ipam.SharedRange{NodeName: q.node,
								Start: later(r.start, o.start).String(), End: earlier(r.end, o.end).String()})
						}
					}
				}
				named := func(s ipam.SharedRange) bool { return slices.Contains(want, s) }
				if slices.ContainsFunc(got[p.node], named) != (len(want) > 0) {
					rt.Fatalf("%s %v: %v, want one of %v", p.node, r, got[p.node], want)
				}
				count += min(len(want), 1)
			}
		}
		for _, s := range got {
			count -= len(s)
		}
		check.Equal(rt, count, 0, "missing in", got)
	})
}

// What is named does not depend on the order, and a node that comes or goes changes that of few
// others, also if all nodes have one range.
func TestSharedRangesStay(t *testing.T) {
	const nodes = 200
	var pools []*nodePool
	for i := range nodes {
		pools = append(pools, poolWith(fmt.Sprintf("node%03d", i), "lan 10.0.0.2 10.0.0.9 macvlan",
			fmt.Sprintf("lan 10.0.1.2 10.0.1.%d macvlan", 3+i%5)))
	}
	before := sharedRanges(pools)
	check.Equal(t, len(before), nodes, "nodes")
	rand.Shuffle(len(pools), func(i, j int) { pools[i], pools[j] = pools[j], pools[i] })
	if again := sharedRanges(pools); !reflect.DeepEqual(again, before) {
		t.Error("another order of the same nodes changes what is named")
	}
	for _, p := range pools {
		for _, s := range before[p.node] {
			p.partners = append(p.partners, s.NodeName)
		}
	}
	without := slices.DeleteFunc(slices.Clone(pools), func(p *nodePool) bool { return p.node == "node000" })
	huge := poolWith("node999", "lan 10.0.0.0 10.0.255.255 macvlan")
	for story, pools := range map[string][]*nodePool{"one is gone": without, "one more": append(pools, huge)} {
		changed := 0
		for node, shared := range sharedRanges(pools) {
			if node != huge.node && !slices.Equal(shared, before[node]) {
				changed++
			}
		}
		check.Between(t, changed, 0, 3, story)
	}
}

// Addresses that are none, or no range, are left out.
func TestUnusableRanges(t *testing.T) {
	p := poolWith("node1", "a fd00::3%text fd00::9 macvlan", "b 10.0.0.9 10.0.0.2 macvlan",
		"c 10.0.0.2 fd00::9 macvlan", "d x y macvlan")
	check.Empty(t, p.ranges)
}
