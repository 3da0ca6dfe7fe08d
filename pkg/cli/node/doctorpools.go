package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/cniplugin"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// checkAddresses finds networks in which no pod can get an address: because of the configuration,
// a plugin or a directory that it names, or because no address is free.
func (n *nodeDoctor) checkAddresses(ctx context.Context) {
	for _, s := range n.networks {
		if s.State != cniconf.Active {
			continue // another finding says so
		}
		isRefused := func(stdin []byte) bool { return cniplugin.CheckConfiguration(stdin) != nil }
		if i := slices.IndexFunc(s.Stdin, isRefused); i >= 0 {
			n.findRefused(s, cniplugin.CheckConfiguration(s.Stdin[i]))
			continue
		}
		if len(s.Missing) > 0 {
			n.Find(cli.Finding{Reason: "PluginMissing", Subject: networkOf(s), Why: noneStarts,
				What: fmt.Sprintf("every ADD with %s fails: %s is not in %s, or not executable", s.File,
					strings.Join(s.Missing, " and "), strings.Join(n.BinDirs, " or ")),
				Decide: "which package installs it there (containernetworking/plugins has most), or that no pod " +
					"needs it: then remove its entry"})
		} else if s.Pool != (lease.Pool{}) {
			n.checkUsable(ctx, s.Pool, networkOf(s))
		}
		n.checkFull(ctx, s)
	}
}

const noneStarts = "no pod of the network can start"

// findRefused adds a configuration with which every ADD fails with an error.
func (n *nodeDoctor) findRefused(s cniconf.Status, err error) {
	n.Find(cli.Finding{Reason: "ConfigurationRefused", Subject: networkOf(s),
		What:   fmt.Sprintf("every ADD with %s fails: %v", s.File, err),
		Why:    noneStarts,
		Decide: "what the configuration is to say; correct it where the file comes from"})
}

// checkUsable checks whether the directory of the address files of a pool can be used.
func (n *nodeDoctor) checkUsable(ctx context.Context, p lease.Pool, subject string) {
	err := operation.ProbeLock(p)
	f := cli.Finding{Reason: "DirectoryUnusable", Subject: subject, Why: noneStarts, Decide: "what is in the place " +
		"of host-local's directory of the network or of its lock, and may be removed; the address files of pods " +
		"that run have to stay"}
	if err == nil {
		err = n.store().View(ctx, func(tx *store.Tx) error { return n.service().Node.ProbeOwner(tx.ID(), p) })
		f.Decide = "whether another node uses the directory: then each needs a dataDir of its own; if none does, " +
			"remove the file .leasehold there"
		if !errors.Is(err, operation.ErrOtherNode) {
			return // checkStore finds what is wrong with the store
		}
	}
	f.What = err.Error()
	n.Find(f)
}

// networkOf returns the subject of findings about a network.
func networkOf(s cniconf.Status) string {
	if s.Network == "" {
		return s.File
	}
	return "network " + s.Network
}

// checkFull finds the range sets of a network of which no address is free.
func (n *nodeDoctor) checkFull(ctx context.Context, s cniconf.Status) {
	if s.Pool == (lease.Pool{}) || n.state.err != nil {
		return // checkStore has the error of the store
	}
	leases := n.leasesAfterADD(ctx, s)
	for _, set := range n.setsOf(s) {
		running, unknown, held := n.holdersOf(set.Ranges, s.Pool.Network, leases)
		switch {
		case set.Size == 0:
			n.findRefused(s, fmt.Errorf("%s has no address that is not a gateway", set.Ranges))
		case running.count+unknown.count+held.count >= set.Size:
			var has []string
			for _, h := range []holder{running, unknown, held} {
				if h.count > 0 {
					has = append(has, fmt.Sprintf("%d %s", h.count, h.text))
				}
			}
			// Of equal numbers it is the first of those that do not end by themselves.
			most := slices.MaxFunc([]holder{unknown, held, running}, func(a, b holder) int {
				return cmp.Compare(a.count, b.count)
			})
			n.Find(cli.Finding{Reason: "PoolFull", Subject: networkOf(s), Why: "no new pod can start " +
				"before an address is free, unless a hold ends for it (onExhaustion)",
				What: fmt.Sprintf("none of the %d addresses of %s is free: %s", set.Size, set.Ranges,
					strings.Join(has, ", ")),
				Decide: most.decide})
		}
	}
}

// setsOf returns the range sets of a network and their sizes, which those of the store do not have
// in their ranges: of the configuration, or else of the last ADD.
func (n *nodeDoctor) setsOf(s cniconf.Status) (sets []store.Usage) {
	for _, set := range s.Sets {
		sets = append(sets, store.Usage{Ranges: set, Size: set.Size()})
	}
	for _, u := range n.state.usage {
		if s.Sets == nil && u.Pool == s.Pool && u.Ranges != nil {
			sets = append(sets, u)
		}
	}
	return sets
}

// leasesAfterADD returns the leases of a network that are left if an ADD finds no free address: it
// releases those of dead containers, and makes leases of what the node shows of other addresses. Of
// an address that the network has with several dataDirs it returns one that keeps it.
func (n *nodeDoctor) leasesAfterADD(ctx context.Context, s cniconf.Status) map[netip.Addr]lease.Lease {
	evidence := host.NewEvidence(n.Host, n.Clock().BootID, host.BoundIn(n.state.leases))
	out := map[netip.Addr]lease.Lease{}
	for _, l := range n.state.leases {
		if l.Pool.Network != s.Pool.Network {
			continue
		}
		at := l.Address
		if l.State == lease.Bound && evidence.Prove(l) == lease.Dead {
			l, _ = lease.Apply(l, lease.Release{Holder: l.Holder, LastHolder: lease.Dead}, n.Clock())
		}
		if was := out[at]; was.State != lease.Bound && (l.State == lease.Bound || !was.IsHold) {
			out[at] = l
		}
	}
	shown, err := n.service().Find(ctx, operation.Existing(s.Pool, s.Sets))
	n.Fail(err)
	for _, f := range shown.Findings {
		if _, isKnown := out[f.Lease.Address]; !isKnown {
			out[f.Lease.Address] = f.Lease
		}
	}
	return out
}

// holder is a kind of what has addresses of a range set, with their number.
type holder struct {
	count        uint64
	text, decide string // what it is, and what frees the addresses
}

// holdersOf returns what has the addresses of a range set of a network: containers whose network
// namespace is known, those of which no more is known than an address file says, and holds. An
// address in cool-down is not counted, because it is given if no other is left.
func (n *nodeDoctor) holdersOf(set pool.Set, network string, leases map[netip.Addr]lease.Lease) (running, unknown,
	held holder) {
	running = holder{text: "in use by containers that leasehold knows", decide: "whether fewer pods are to run on " +
		"this node, or the network gets more addresses (a larger range, or another one in the range set)"}
	unknown = holder{text: "in use by containers that only host-local's files name", decide: "whether the containers " +
		"that only files name still run: nothing on the node proves it. Drain the node and boot it: no container " +
		"of before lives then, and all of their addresses are free, once files that cannot be read are removed. " +
		"No other command is safe"}
	held = holder{text: "held for pods that are away", decide: "which of the pods that are away get their addresses " +
		"back: " + cli.ShellCommand("leasectl", "list", "--network="+network, "--state=held") + " shows them, " +
		"leasectl release <namespace>/<pod> ends a hold, and a shorter reserved-ip-duration or maxHeldShare " +
		"holds fewer"}
	for _, l := range leases {
		switch {
		case !set.Usable(l.Address), l.Lapsed(n.Clock()), l.State == lease.Held && !l.IsHold:
		case l.State == lease.Held:
			held.count++
		case l.Holder.Netns.Ino == 0:
			unknown.count++
		default:
			running.count++
		}
	}
	return running, unknown, held
}
