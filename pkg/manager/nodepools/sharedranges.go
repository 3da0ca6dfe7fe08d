package nodepools

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

const (
	// compareDelay is the time from a change of a node's ranges until those of all nodes are
	// compared, so that a node that changes them all the time delays nothing else.
	compareDelay = 10 * time.Second
	// maxCompared is the largest number of nodes that are written after a comparison.
	maxCompared = 64
)

// allRanges is the request for a comparison of the ranges of all nodes. No node has a namespace.
var allRanges = control.RequestFor("all/ranges")

// sharedRanges returns, by node, the ranges on links that pods of other nodes may be on as well
// (NetworkAddressPool.Link) of which another node has addresses. For each range it names one other
// node: that which the NodeAddressPool names, as long as it has addresses of the range, so that a
// node that comes or goes changes few others.
func sharedRanges(pools []*nodePool) map[string][]ipam.SharedRange {
	all, linked, partners := []nodeRange{}, map[string][]nodeRange{}, map[string][]string{}
	for _, p := range pools {
		partners[p.node] = p.partners
		for _, r := range p.ranges {
			if r.isLinked {
				linked[p.node] = append(linked[p.node], r)
				all = append(all, r)
			}
		}
	}
	slices.SortFunc(all, func(a, b nodeRange) int {
		return cmp.Or(a.start.Compare(b.start), a.end.Compare(b.end), cmp.Compare(a.node, b.node))
	})
	others := neighbours(all)
	out := map[string][]ipam.SharedRange{}
	for i, r := range all {
		other := others[i]
		isNamed := other != nil && slices.Contains(partners[r.node], other.node)
		for _, node := range partners[r.node] {
			if at := slices.IndexFunc(linked[node], r.overlaps); at >= 0 && !isNamed {
				other, isNamed = &linked[node][at], true
			}
		}
		if other != nil && len(out[r.node]) < ipam.MaxShared {
			out[r.node] = append(out[r.node], ipam.SharedRange{NodeName: other.node,
				Start: later(r.start, other.start).String(), End: earlier(r.end, other.end).String()})
		}
	}
	return out
}

// neighbours returns for each of the sorted ranges one of another node that overlaps it, nil if
// there is none: the one before it, else the next one of another node, else that with the last end
// of those before it.
func neighbours(all []nodeRange) []*nodeRange {
	others := make([]*nodeRange, len(all))
	var last []*nodeRange // those with the last ends before here, the last first, of two nodes at most
	for i := range all {
		r, candidates := &all[i], []*nodeRange{&all[max(i-1, 0)]}
		next := slices.IndexFunc(all[i:], func(n nodeRange) bool { return n.node != r.node }) // within maxRanges
		if next >= 0 {
			candidates = append(candidates, &all[i+next])
		}
		candidates = append(candidates, last...)
		if at := slices.IndexFunc(candidates, func(n *nodeRange) bool { return n.overlaps(*r) }); at >= 0 {
			others[i] = candidates[at]
		}
		last = append(last, r)
		slices.SortStableFunc(last, func(a, b *nodeRange) int { return b.end.Compare(a.end) })
		last = slices.CompactFunc(last, func(a, b *nodeRange) bool { return a.node == b.node })
		last = last[:min(len(last), 2)]
	}
	return others
}

// overlaps reports whether a range of another node has addresses of n.
func (n nodeRange) overlaps(other nodeRange) bool {
	return n.node != other.node && !other.end.Less(n.start) && !n.end.Less(other.start)
}

func earlier(a ...netip.Addr) netip.Addr { return slices.MinFunc(a, netip.Addr.Compare) }

func later(a ...netip.Addr) netip.Addr { return slices.MaxFunc(a, netip.Addr.Compare) }

// compareRanges enqueues the nodes whose NodeAddressPool does not name the ranges that they share.
func (r *specReconciler) compareRanges() (reconcile.Result, error) {
	pools, former, enqueued := r.pools.List(), r.shared, 0
	r.shared = sharedRanges(pools)
	for node := range former {
		if len(r.shared[node]) == 0 {
			r.sharedMetric.DeleteLabelValues(node)
		}
	}
	for node, shared := range r.shared {
		r.sharedMetric.WithLabelValues(node).Set(float64(len(shared)))
	}
	for _, p := range pools {
		if p.shared == digestOf(r.shared[p.node]) {
			continue
		}
		if enqueued++; enqueued > maxCompared {
			return reconcile.Result{RequeueAfter: compareDelay}, nil
		}
		r.queue.Add(control.RequestFor(p.node))
	}
	return reconcile.Result{}, nil
}
