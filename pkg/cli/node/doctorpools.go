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
func (n *nodeDoctor) checkAddresses(ctx context.Context) (found []cli.Finding, err error) {
	for _, s := range n.networks {
		if s.State != cniconf.Active {
			continue // another finding says so
		}
		isRefused := func(stdin []byte) bool { return cniplugin.CheckConfiguration(stdin) != nil }
		if i := slices.IndexFunc(s.Stdin, isRefused); i >= 0 {
			found = append(found, refused(s, cniplugin.CheckConfiguration(s.Stdin[i])))
			continue
		}
		if f := n.checkUsable(ctx, s); f.Reason != "" {
			found = append(found, f)
		}
		full, e := n.checkFull(s)
		found, err = append(found, full...), errors.Join(err, e)
	}
	return found, err
}

// refused returns the finding about a configuration with which every ADD fails with an error.
func refused(s cniconf.Status, err error) cli.Finding {
	return cli.Finding{Reason: "ConfigurationRefused", Subject: networkOf(s),
		What:   fmt.Sprintf("every ADD with %s fails: %v", s.File, err),
		Why:    "no pod of the network can start",
		Decide: "what the configuration is to say; correct it where the file comes from"}
}

// checkUsable finds a plugin that is missing, or a directory of address files that cannot be used.
func (n *nodeDoctor) checkUsable(ctx context.Context, s cniconf.Status) cli.Finding {
	f := cli.Finding{Subject: networkOf(s), Why: "no pod of the network can start"}
	if len(s.Missing) > 0 {
		f.Reason = "PluginMissing"
		f.What = fmt.Sprintf("every ADD with %s fails: %s is not in %s, or not executable", s.File,
			strings.Join(s.Missing, " and "), strings.Join(n.BinDirs, " or "))
		f.Decide = "which package installs it there (containernetworking/plugins has most), or that no pod " +
			"needs it: then remove its entry"
		return f
	}
	if s.Pool == (lease.Pool{}) {
		return cli.Finding{}
	}
	err := operation.ProbeLock(s.Pool)
	f.Reason = "DirectoryUnusable"
	f.Decide = "what is in the place of host-local's directory of the network or of its lock, and may be removed; " +
		"the address files of pods that run have to stay"
	if err == nil {
		err = n.store().View(ctx, func(tx *store.Tx) error { return n.service().Node.ProbeOwner(tx, s.Pool) })
		f.Decide = "whether another node uses the directory: then each needs a dataDir of its own; if none does, " +
			"remove the file .leasehold there"
		if !errors.Is(err, operation.ErrOtherNode) {
			return cli.Finding{} // checkStore finds what is wrong with the store
		}
	}
	f.What = err.Error()
	return f
}

// networkOf returns the subject of findings about a network.
func networkOf(s cniconf.Status) string {
	if s.Network == "" {
		return s.File
	}
	return "network " + s.Network
}

// checkFull finds the range sets of a network of which no address is free.
func (n *nodeDoctor) checkFull(s cniconf.Status) (found []cli.Finding, err error) {
	if s.Pool == (lease.Pool{}) || n.state.err != nil {
		return nil, nil // checkStore returns the error of the store
	}
	leases, err := n.leasesAfterADD(s)
	for _, set := range n.setsOf(s) {
		has := holdersIn(s.Pool.Network)
		for _, l := range leases {
			if set.Usable(l.Address) {
				has.add(l, n.Clock())
			}
		}
		switch {
		case set.size == 0:
			found = append(found, refused(s, fmt.Errorf("%s has no address that is not a gateway", set)))
		case has.taken() >= set.size:
			found = append(found, cli.Finding{Reason: "PoolFull", Subject: networkOf(s), Why: "no new pod can start " +
				"before an address is free, unless a hold ends for it (onExhaustion)",
				What:   fmt.Sprintf("none of the %d addresses of %s is free: %s", set.size, set, has),
				Decide: has.decide()})
		}
	}
	return found, err
}

// setsOf returns the range sets of a network: those of the configuration, or else of the last ADD.
func (n *nodeDoctor) setsOf(s cniconf.Status) (sets []sized) {
	for _, set := range s.Sets {
		sets = append(sets, sized{set, set.Size()})
	}
	for _, u := range n.state.usage {
		if s.Sets == nil && u.Pool == s.Pool && u.Ranges != nil {
			sets = append(sets, sized{u.Ranges, u.Size})
		}
	}
	return sets
}

// sized is a range set with the number of its usable addresses: the sets of the store do not have
// their gateways.
type sized struct {
	pool.Set
	size uint64
}

// leasesAfterADD returns the leases of a network that are left if an ADD finds no free address: it
// releases those of dead containers, and makes leases of what the node shows of other addresses. Of
// an address that the network has with several dataDirs it returns one that keeps it.
func (n *nodeDoctor) leasesAfterADD(s cniconf.Status) (map[netip.Addr]lease.Lease, error) {
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
	shown, err := n.service().Node.Find(operation.Existing(s.Pool, s.Sets), nil)
	for _, f := range shown.Findings {
		if _, isKnown := out[f.Lease.Address]; !isKnown {
			out[f.Lease.Address] = f.Lease
		}
	}
	return out, err
}

// holders are what has the addresses of a range set. An address in cool-down is not counted,
// because it is given if no other is left.
type holders []holder

type holder struct {
	count  uint64
	text   string
	decide string // what frees addresses
}

// The indexes of holders.
const (
	running = iota // containers whose network namespace is known
	unknown        // containers of which no more is known than an address file says
	held
)

// holdersIn returns the holders of a range set of a network, of which none is counted yet.
func holdersIn(network string) holders {
	return holders{
		running: {text: "in use by containers that leasehold knows", decide: "whether fewer pods are to run on this " +
			"node, or the network gets more addresses (a larger range, or another one in the range set)"},
		unknown: {text: "in use by containers that only host-local's files name", decide: "whether the containers " +
			"that only files name still run: nothing on the node proves it. Drain the node and boot it: no container " +
			"of before lives then, and all of their addresses are free. No other command is safe"},
		held: {text: "held for pods that are away", decide: "which of the pods that are away get their addresses " +
			"back: " + cli.ShellCommand("leasectl", "list", "--network="+network, "--state=held") + " shows them, " +
			"leasectl release <namespace>/<pod> ends a hold, and a shorter reserved-ip-duration or maxHeldShare " +
			"holds fewer"},
	}
}

func (h holders) add(l lease.Lease, now lease.Instant) {
	switch {
	case l.Lapsed(now) || l.State == lease.Held && !l.IsHold:
	case l.State == lease.Held:
		h[held].count++
	case l.Holder.Netns.Ino == 0:
		h[unknown].count++
	default:
		h[running].count++
	}
}

// taken returns how many addresses no pod gets.
func (h holders) taken() uint64 { return h[running].count + h[unknown].count + h[held].count }

func (h holders) String() string {
	var parts []string
	for _, one := range h {
		if one.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", one.count, one.text))
		}
	}
	return strings.Join(parts, ", ")
}

// decide returns what frees addresses, by who has the most. Of equal numbers it takes the first of
// those that do not end by themselves.
func (h holders) decide() string {
	return slices.MaxFunc(holders{h[unknown], h[held], h[running]}, func(a, b holder) int {
		return cmp.Compare(a.count, b.count)
	}).decide
}
