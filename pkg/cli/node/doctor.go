package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) doctor() *cobra.Command {
	var flags cniFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong on this node, and how to repair it",
		Long: `Check that the container runtime calls leasehold, that pods' annotations reach it,
and that the store and its directories can be used. Each finding says what was found
and what it leads to. It has a command that repairs it if running that can do no harm;
otherwise it says what there is to decide. Nothing is changed.

The directories of CNI are those that the configuration of the container runtime
names, or the flags. It has to run on the node itself, as root.

The exit status is 0 if nothing was found, 1 if something was, and 2 if nothing was
found but something could not be checked.`,
		Example: "  leasectl doctor\n  leasectl doctor -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.PrintReport(a.examineNode(cmd.Context(), flags.runtime()))
		},
	}
	a.OutputFlag(c)
	flags.register(c)
	return c
}

// nodeDoctor examines this node. The process must see the file system and processes of the host.
type nodeDoctor struct {
	*app
	*cli.Report
	cniconf.Runtime
	conf     cniconf.Conf
	networks []cniconf.Status // of conf
	state    content
}

// examineNode reads the configuration and the store, and makes all checks of the node.
func (a *app) examineNode(ctx context.Context, runtime cniconf.Runtime) *cli.Report {
	conf := cniconf.Load(runtime.ConfDir, runtime.Rules)
	n := &nodeDoctor{a, cli.NewReport(), runtime, conf, cniconf.Check(conf, runtime.BinDirs), a.content(ctx)}
	n.Check(ctx, "configuration", n.checkConfiguration)
	n.Check(ctx, "addresses", n.checkAddresses)
	n.Check(ctx, "directories", n.checkDirectories)
	n.Check(ctx, "store", n.checkStore)
	n.Check(ctx, "ranges", n.checkRanges)
	n.Check(ctx, "host", n.checkHost)
	for _, s := range n.networks {
		n.Examined = append(n.Examined, fmt.Sprintf("%s in %s", networkOf(s), s.File))
	}
	n.Examined = append(n.Examined, fmt.Sprintf("%d leases", len(n.state.leases)))
	return n.Report
}

// content is what the checks need of the store's content.
type content struct {
	leases []lease.Lease
	usage  []store.Usage
	spaces string // tx.NamespaceIDs
	lost   string // tx.Lost; "" also if the leases of all pools are known again
	wrong  []string
	err    error
}

func (a *app) content(ctx context.Context) (c content) {
	c.err = a.store().View(ctx, func(tx *store.Tx) error {
		c = content{usage: tx.Usage(), spaces: tx.NamespaceIDs(), wrong: tx.Check(), lost: tx.Lost()}
		for l, err := range tx.All {
			if err == nil {
				c.leases = append(c.leases, l)
			}
		}
		// leasectl recover, which does not know the ranges of a pool, leaves it to the next ADD to
		// mark the pool as imported. It writes leases only if a complete source shows them.
		isLost := func(p lease.Pool) bool { return !tx.Imported(p) && len(tx.InPool(p)) == 0 }
		if pools := tx.Pools(); len(pools) > 0 && !slices.ContainsFunc(pools, isLost) {
			c.lost = ""
		}
		return nil
	})
	return c
}

// minimum is the free space, in bytes, below which there is a finding about the directories of the
// store. It is several times the size of a record with its indexes and a page of the journal.
const minimum = 1 << 20

// checkDirectories checks whether the directories of the store are writable and have free space.
func (n *nodeDoctor) checkDirectories(context.Context) {
	for _, dir := range []string{n.Dirs.State, n.Dirs.Run} {
		there := dir // or its nearest parent that exists
		var fs unix.Statfs_t
		err := unix.Statfs(there, &fs)
		for ; errors.Is(err, os.ErrNotExist) && there != "/"; err = unix.Statfs(there, &fs) {
			there = filepath.Dir(there)
		}
		if err != nil {
			n.Fail(&os.PathError{Op: "statfs", Path: there, Err: err})
			continue
		}
		n.checkDirectory(dir, there, unix.Access(there, unix.W_OK), fs)
	}
}

// checkDirectory checks a directory of the store. there is the directory or its nearest parent that
// exists, access the error of writing there, and fs the state of its file system.
func (n *nodeDoctor) checkDirectory(dir, there string, access error, fs unix.Statfs_t) {
	f := cli.Finding{Reason: "StateReadOnly", Subject: dir,
		Why: "pods cannot start on this node: a lease is written before its address is given out"}
	free := fs.Bavail * uint64(fs.Bsize) // never negative
	switch {
	case errors.Is(access, syscall.EROFS):
		f.What = fmt.Sprintf("%s is on a file system that is mounted read-only", there)
		f.Decide = fmt.Sprintf("whether %s may be mounted read-write again: the kernel mounts a file system read-only "+
			"when it finds an error (dmesg says so), and it has to be checked before anything is written to it",
			there)
	case access != nil:
		f.What = fmt.Sprintf("%s cannot be written: %v", there, access)
		f.Decide = "run doctor as root; root may write unless the file is immutable (lsattr) or a security module " +
			"denies it, and whoever has set that up decides"
	case free < minimum, fs.Files > 0 && fs.Ffree == 0:
		f.Reason = "StateFull"
		f.What = fmt.Sprintf("the file system of %s has %d bytes and %d files left", there, free, fs.Ffree)
		f.Decide = "which files of that file system may be removed; the directory lost in it has copies of stores " +
			"that were lost, which only people read"
	default:
		return
	}
	n.Find(f)
}

// checkStore checks whether the store can be read and is consistent.
func (n *nodeDoctor) checkStore(context.Context) {
	c, path := n.state, filepath.Join(n.Dirs.State, "leases.db")
	f := cli.Finding{Subject: path}
	switch {
	case errors.Is(c.err, store.ErrNewer):
		f.Reason, f.What = "BinaryOlder", c.err.Error()
		f.Why = "pods cannot start on this node: the plugin is older than the one that has written the store, " +
			"and does not write what it cannot read"
		f.Decide = `whether this node goes back to the older version (docs/upgrade.md, "Go back"). If not, ` +
			"install the version that has written the store, or a later one"
	case errors.Is(c.err, store.ErrLost):
		f.Reason, f.What = "StoreLost", c.err.Error()
		f.Why = "which addresses are kept is not known until the leases are imported from what the node shows"
		f.Repair = []string{cli.RecoverStore(n.pool()...)}
	case c.err != nil:
		n.Fail(c.err)
		return
	case c.lost != "":
		f.Reason = "StoreIncomplete"
		f.What = "no complete source has shown which addresses are in use: " + c.lost
		f.Why = "no address is given out: pods cannot start on this node"
		accept := append([]string{"leasectl", "recover", "--accept-loss"}, n.pool()...)
		f.Decide = "whether any pod of the network runs here: its address would be given twice. Drain the node, " +
			"then confirm on it with " + cli.ShellCommand(accept...)
	case len(c.wrong) > 0:
		f.Reason, f.What = "StoreDamaged", strings.Join(c.wrong, "; ")
		f.Why = "an address of a damaged record is not given out, and may not be kept for its pod"
		f.Repair = []string{cli.RecoverStore(n.pool()...)}
	default:
		return
	}
	n.Find(f)
}

// pool returns the flags for leasectl recover that select the pool of the loaded configuration.
func (n *nodeDoctor) pool() (flags []string) {
	for _, f := range n.conf.Loaded {
		for _, p := range f.Plugins {
			if p.IPAM.DataDir != "" {
				return []string{"--data-dir=" + p.IPAM.DataDir, "--network=" + f.Network}
			}
		}
		flags = []string{"--network=" + f.Network}
	}
	return flags
}

// checkHost checks whether this process sees the network namespaces of the node's sandboxes. If
// not, the other checks may be wrong, so that is an error and no finding.
func (n *nodeDoctor) checkHost(context.Context) { n.Fail(n.proveHost()) }

// proveHost returns an error if the node has leases, and it is not proven that this process sees
// the processes and mounts of their containers.
func (n *nodeDoctor) proveHost() error {
	if n.state.err != nil || len(n.state.leases) == 0 {
		return nil
	}
	if err := n.Host.ProveView(n.state.spaces, n.Clock().BootID, host.BoundIn(n.state.leases)); err != nil {
		return fmt.Errorf("%w; %s", err, runOnHost)
	}
	return nil
}

// checkRanges finds addresses that are in use in one network and are in the ranges of another
// network. The two networks do not know of each other's addresses, so the other network may assign
// the same address again.
func (n *nodeDoctor) checkRanges(context.Context) {
	for _, u := range n.state.usage {
		// Without a loaded configuration, any pool may be one of the present network.
		if u.Ranges == nil || len(n.conf.Loaded) > 0 && n.fileOf(u.Pool) == "" {
			continue
		}
		for _, l := range n.state.leases {
			isOther := l.Pool.Network != u.Pool.Network // an ADD looks in all dataDirs of a network
			if isOther && u.Ranges.Contains(l.Address) && !l.Lapsed(n.Clock()) {
				n.Find(cli.Finding{Reason: "RangeShared",
					Subject: fmt.Sprintf("networks %s and %s", u.Pool.Network, l.Pool.Network),
					What: fmt.Sprintf("%s is in use in network %s, and is in the range %s of network %s", l.Address,
						l.Pool.Network, u.Ranges, u.Pool.Network),
					Why: "network " + u.Pool.Network + " may give the same address to another pod: both lists of " +
						"addresses are kept by network",
					Decide: n.endLease(l)})
			}
		}
	}
}

// fileOf returns the path of the loaded configuration that has the network of a pool, "" if there
// is none.
func (n *nodeDoctor) fileOf(p lease.Pool) string {
	for _, f := range n.conf.Loaded {
		if f.Network == p.Network {
			return f.Path
		}
	}
	return ""
}

// endLease returns what there is to decide about an overlap in which the lease l has the address.
func (n *nodeDoctor) endLease(l lease.Lease) string {
	if file := n.fileOf(l.Pool); file != "" {
		return "which of the two networks gets other ranges; the other one's are in " + file
	}
	return "no configuration has network " + l.Pool.Network + " any more: its pods get addresses of the present " +
		"network when they are created again. An address that is held is released by " +
		cli.ShellCommand("leasectl", "release", "--network="+l.Pool.Network, l.Address.String())
}
