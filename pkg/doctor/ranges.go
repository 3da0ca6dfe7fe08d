package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// checkRanges finds addresses that are in use in one network and are in the ranges of another
// network. The two networks do not know of each other's addresses, so the other network may assign
// the same address again.
func checkRanges(_ context.Context, n *Node) ([]Finding, error) {
	var found []Finding
	var failed error
	files := map[string][]owned{} // by dataDir
	for _, u := range n.state.usage {
		if u.Ranges == nil || !n.isCurrent(u.Pool) {
			continue
		}
		for _, l := range n.state.leases {
			if l.Pool != u.Pool && u.Ranges.Contains(l.Address) && !l.Lapsed(n.Clock()) {
				found = append(found, overlap(u, l.Pool.Network, l.Address, n.endLease(l)))
			}
		}
		if _, read := files[u.Pool.DataDir]; !read {
			all, err := n.unknownNetworks(u.Pool.DataDir)
			files[u.Pool.DataDir], failed = all, errors.Join(failed, err)
		}
		for _, f := range files[u.Pool.DataDir] {
			if u.Ranges.Contains(f.address) {
				found = append(found, overlap(u, f.network, f.address, f.end()))
			}
		}
	}
	return found, failed
}

// overlap returns the finding about the address a, which is in use in the network other and in the
// ranges of u.
func overlap(u store.Usage, other string, a netip.Addr, decide string) Finding {
	return Finding{Reason: "RangeShared", Subject: fmt.Sprintf("networks %s and %s", u.Pool.Network, other),
		What: fmt.Sprintf("%s is in use in network %s, and is in the range %s of network %s", a, other, u.Ranges,
			u.Pool.Network),
		Why: "network " + u.Pool.Network + " may give the same address to another pod: both lists of addresses " +
			"are kept by network",
		Decide: decide}
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
	file := n.fileOf(l.Pool)
	if file != "" {
		return "which of the two networks gets other ranges; the other one's are in " + file
	}
	gone := "no configuration has network " + l.Pool.Network + " any more; "
	if l.State == lease.Held || l.Holder.ContainerID == "" {
		return gone + "if its pod need not return to the address, release it on the node: " +
			command("leasectl", "release", "--network="+l.Pool.Network, l.Address.String())
	}
	return gone + "the pod gets an address of the present network with its next sandbox: when it is created again, " +
		"or when its containers are stopped on the node by " + command("crictl", "stopp", l.Holder.ContainerID)
}

// owned is an address that is in use according to host-local's files, in a network of which the
// store has no pool.
type owned struct {
	network, path string
	address       netip.Addr
	container     string
}

// end returns what there is to decide about the use of the address.
func (o owned) end() string {
	if o.container == "" {
		return "whether any container has the address; if none has, remove " + o.path
	}
	return "whether container " + o.container + " still has the address: if it has, the pod gets another one when it " +
		"is created again; if not, remove " + o.path
}

// unknownNetworks returns the addresses in those directories of host-local below dataDir that
// belong to no pool of the store.
func (n *Node) unknownNetworks(dataDir string) (out []owned, err error) {
	known := map[string]bool{"reserved": true} // the Kruise fork has its reservations there
	for _, u := range n.state.usage {
		if u.Pool.DataDir == dataDir {
			known[u.Pool.Network] = true
		}
	}
	dirs, err := os.ReadDir(dataDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, d := range dirs {
		if !d.IsDir() || known[d.Name()] {
			continue
		}
		dir, e := hostlocal.OpenUnlocked(lease.Pool{DataDir: dataDir, Network: d.Name()})
		if dir == nil {
			err = errors.Join(err, e)
			continue
		}
		addrs, e := dir.Addresses()
		err = errors.Join(err, e)
		for _, a := range addrs {
			f, there, e := dir.Read(a)
			if e != nil || !there {
				err = errors.Join(err, e)
				continue
			}
			id, _, _ := hostlocal.ParseOwner(f.Content)
			out = append(out, owned{d.Name(), filepath.Join(dataDir, d.Name(), a.String()), a, id})
		}
	}
	slices.SortFunc(out, func(a, b owned) int {
		return cmp.Or(cmp.Compare(a.network, b.network), a.address.Compare(b.address))
	})
	return out, err
}
