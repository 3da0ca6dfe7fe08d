package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Node is a node to examine. The process must see the file system and processes of the host.
type Node struct {
	Store *store.Store
	Host  *host.Host
	Clock func() lease.Instant
	// ConfDir is the directory of CNI configurations of the container runtime, Rules determine
	// which of them the runtime loads, and Binaries has the directories of plugins.
	ConfDir  string
	Rules    cniconf.Rules
	Binaries cniconf.Binaries

	conf  cniconf.Conf
	state content
}

// nodeChecks are the checks of a node.
var nodeChecks = []check[*Node]{
	{"configuration", checkConfiguration},
	{"annotations", checkAnnotations},
	{"directories", checkDirectories},
	{"store", checkStore},
	{"ranges", checkRanges},
	{"host", checkHost},
}

// Examine reads the configuration and the store, and makes all checks of the node.
func (n *Node) Examine(ctx context.Context) Report {
	n.conf = cniconf.Load(n.ConfDir, n.Rules)
	n.state = read(ctx, n.Store)
	return examine(ctx, n, nodeChecks)
}

// content is what the checks need of the store's content.
type content struct {
	leases  []lease.Lease
	usage   []store.Usage
	spaces  string // tx.NamespaceIDs
	lost    string // tx.Lost; "" also if the leases of all pools are known again
	wrong   []string
	isEmpty bool
	err     error
}

func read(ctx context.Context, s *store.Store) (c content) {
	c.err = s.View(ctx, func(tx *store.Tx) error {
		c = content{usage: tx.Usage(), spaces: tx.NamespaceIDs(), wrong: tx.Check(), lost: tx.Lost()}
		tx.All(func(l lease.Lease, err error) bool {
			if err == nil {
				c.leases = append(c.leases, l)
			}
			return true
		})
		pools, known := tx.Pools(), 0
		for _, p := range pools {
			// leasectl recover, which does not know the ranges of a pool, leaves it to the next ADD
			// to mark the pool as adopted. It writes leases only if a complete source shows them.
			if tx.Adopted(p) || len(tx.InPool(p)) > 0 {
				known++
			}
		}
		if len(pools) > 0 && known == len(pools) {
			c.lost = ""
		}
		return nil
	})
	if store.IsEmpty(c.err) {
		return content{isEmpty: true}
	}
	return c
}

// minimum is the free space, in bytes, below which there is a finding about the directories of the
// store. It is several times the size of a record with its indexes and a page of the journal.
const minimum = 1 << 20

// checkDirectories checks whether the directories of the store are writable and have free space.
func checkDirectories(_ context.Context, n *Node) (found []Finding, err error) {
	for _, dir := range []string{n.Store.Dirs().State, n.Store.Dirs().Run} {
		there := dir // or its nearest parent that exists
		for {
			if _, err := os.Stat(there); !errors.Is(err, os.ErrNotExist) || there == "/" {
				break
			}
			there = filepath.Dir(there)
		}
		var fs unix.Statfs_t
		if e := unix.Statfs(there, &fs); e != nil {
			err = errors.Join(err, &os.PathError{Op: "statfs", Path: there, Err: e})
			continue
		}
		if f := judgeDirectory(dir, there, unix.Access(there, unix.W_OK), fs); f.Reason != "" {
			found = append(found, f)
		}
	}
	return found, err
}

// judgeDirectory returns the finding about a directory of the store, the zero Finding if it can be
// used. there is the directory or its nearest parent that exists, access the error of writing
// there, and fs the state of its file system.
func judgeDirectory(dir, there string, access error, fs unix.Statfs_t) Finding {
	f := Finding{Reason: "StateReadOnly", Subject: dir,
		Why: "pods cannot start on this node: a lease is written before its address is given out"}
	switch {
	case errors.Is(access, syscall.EROFS):
		f.What = fmt.Sprintf("%s is on a file system that is mounted read-only", there)
		f.Decide = fmt.Sprintf("whether %s may be mounted read-write again: the kernel mounts a file system read-only "+
			"when it finds an error (dmesg says so), and it has to be checked before anything is written to it",
			there)
		return f
	case access != nil:
		f.What = fmt.Sprintf("%s cannot be written: %v", there, access)
		f.Decide = "run doctor as root; root may write unless the file is immutable (lsattr) or a security module " +
			"denies it, and whoever has set that up decides"
		return f
	}
	free := fs.Bavail * uint64(fs.Bsize) // never negative
	if free >= minimum && (fs.Files == 0 || fs.Ffree > 0) {
		return Finding{}
	}
	f.Reason = "StateFull"
	f.What = fmt.Sprintf("the file system of %s has %d bytes and %d files left", there, free, fs.Ffree)
	f.Decide = "which files of that file system may be removed; the directory lost in it has copies of stores that " +
		"were lost, which only people read"
	return f
}

// checkStore checks whether the store can be read and is consistent.
func checkStore(_ context.Context, n *Node) ([]Finding, error) {
	c, path := n.state, filepath.Join(n.Store.Dirs().State, "leases.db")
	f := Finding{Subject: path}
	switch {
	case errors.Is(c.err, store.ErrNewer):
		f.Reason, f.What = "BinaryOlder", c.err.Error()
		f.Why = "pods cannot start on this node: the plugin is older than the one that has written the store, " +
			"and does not write what it cannot read"
		f.Decide = `whether this node goes back to the older version (docs/versioning.md, "Go back"). If not, ` +
			"install the version that has written the store, or a later one"
	case errors.Is(c.err, store.ErrLost):
		f.Reason, f.What = "StoreLost", c.err.Error()
		f.Why = "which addresses are kept is not known until the leases are adopted from what the node shows"
		f.Repair = []string{recoverStore(n.pool()...)}
	case c.err != nil:
		return nil, c.err
	case c.lost != "":
		f.Reason = "StoreIncomplete"
		f.What = "no complete source has shown which addresses are in use: " + c.lost
		f.Why = "no address is given out: pods cannot start on this node"
		accept := append([]string{"leasectl", "recover", "--accept-loss"}, n.pool()...)
		f.Decide = "whether any pod of the network runs here: its address would be given twice. Drain the node, " +
			"then confirm on it with " + command(accept...)
	case len(c.wrong) > 0:
		f.Reason, f.What = "StoreDamaged", strings.Join(c.wrong, "; ")
		f.Why = "an address of a damaged record is not given out, and may not be kept for its pod"
		f.Repair = []string{recoverStore(n.pool()...)}
	default:
		return nil, nil
	}
	return []Finding{f}, nil
}

// pool returns the flags for leasectl recover that select the pool of the loaded configuration.
func (n *Node) pool() (flags []string) {
	for _, i := range n.conf.Loaded {
		f := n.conf.Files[i]
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
// not, the other checks may be wrong, so checkHost returns an error and no finding.
func checkHost(_ context.Context, n *Node) ([]Finding, error) {
	if n.state.isEmpty || n.state.err != nil || len(n.state.leases) == 0 {
		return nil, nil
	}
	bound := func(yield func(lease.Lease) bool) {
		for _, l := range n.state.leases {
			if l.State == lease.Bound && !yield(l) {
				return
			}
		}
	}
	if err := n.Host.ProveView(n.state.spaces, n.Clock().BootID, bound); err != nil {
		return nil, fmt.Errorf("%w; run leasectl as root on the node itself, or in the agent's container with "+
			"--host-root=/proc/1/root", err)
	}
	return nil, nil
}
