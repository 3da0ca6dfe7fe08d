package doctor

import (
	"context"
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// checkRanges finds addresses that are in use in one network and are in the ranges of another
// network. The two networks do not know of each other's addresses, so the other network may assign
// the same address again.
func checkRanges(_ context.Context, n *Node) (found []Finding, err error) {
	for _, u := range n.state.usage {
		if u.Ranges == nil || !n.isCurrent(u.Pool) {
			continue
		}
		for _, l := range n.state.leases {
			if l.Pool != u.Pool && u.Ranges.Contains(l.Address) && !l.Lapsed(n.Clock()) {
				found = append(found, Finding{Reason: "RangeShared",
					Subject: fmt.Sprintf("networks %s and %s", u.Pool.Network, l.Pool.Network),
					What: fmt.Sprintf("%s is in use in network %s, and is in the range %s of network %s", l.Address,
						l.Pool.Network, u.Ranges, u.Pool.Network),
					Why: "network " + u.Pool.Network + " may give the same address to another pod: both lists of " +
						"addresses are kept by network",
					Decide: n.endLease(l)})
			}
		}
	}
	return found, nil
}

// isCurrent reports whether a loaded configuration has the network of a pool. It reports true for
// all pools if no configuration is loaded.
func (n *Node) isCurrent(p lease.Pool) bool { return len(n.conf.Loaded) == 0 || n.fileOf(p) != "" }

// fileOf returns the path of the loaded configuration that has the network of a pool, "" if there
// is none.
func (n *Node) fileOf(p lease.Pool) string {
	for _, i := range n.conf.Loaded {
		if f := n.conf.Files[i]; f.Network == p.Network {
			return f.Path
		}
	}
	return ""
}

// endLease returns what there is to decide about an overlap in which the lease l has the address.
func (n *Node) endLease(l lease.Lease) string {
	if file := n.fileOf(l.Pool); file != "" {
		return "which of the two networks gets other ranges; the other one's are in " + file
	}
	return "no configuration has network " + l.Pool.Network + " any more: its pods get addresses of the present " +
		"network when they are created again. An address that is held is released by " +
		command("leasectl", "release", "--network="+l.Pool.Network, l.Address.String())
}
