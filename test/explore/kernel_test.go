package explore

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// phase is the state of a sandbox's network namespace.
type phase uint8

const (
	notCreated phase = iota
	living           // mounted at its path, with a process in it
	hidden           // unmounted, with a process in it
	gone
)

// kernel is the simulated kernel of a node with its clocks. It is plain data: an assignment copies
// it.
type kernel struct {
	elapsed time.Duration // since the simulation began; never set back
	wall    time.Duration // the wall clock's time since began
	uptime  time.Duration // CLOCK_BOOTTIME
	boot    int
	spaces  [maxSandboxes]namespace
}

type namespace struct {
	phase phase
	inode uint64 // also after it has ended
	boot  int    // in which it was created
	// endedByBoot is set if the sandbox lived until the node booted.
	endedByBoot bool
	addrs       [maxSets]netip.Addr // on its interface
}

// began is the wall clock at the beginning of each simulation.
var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const nsfs = 4 // the device of all namespaces

func newKernel() kernel { return kernel{uptime: 1000 * step, boot: 1} }

func (k *kernel) bootID() string { return fmt.Sprintf("boot-%d", k.boot) }

func (k *kernel) pass(d time.Duration) {
	k.elapsed, k.wall, k.uptime = k.elapsed+d, k.wall+d, k.uptime+d
}

func (k *kernel) now() lease.Instant {
	return lease.Instant{Wall: began.Add(k.wall), Boot: k.uptime, BootID: k.bootID()}
}

// create creates a namespace with the lowest inode number that is free, so that the numbers of
// namespaces that have ended are reused at once.
func (k *kernel) create(sandbox int) {
	used := map[uint64]bool{}
	for _, n := range k.spaces {
		if n.alive() {
			used[n.inode] = true
		}
	}
	inode := uint64(101)
	for used[inode] {
		inode++
	}
	k.spaces[sandbox] = namespace{phase: living, inode: inode, boot: k.boot}
}

func (k *kernel) end(sandbox int) {
	k.spaces[sandbox] = namespace{phase: gone, inode: k.spaces[sandbox].inode, boot: k.spaces[sandbox].boot}
}

func (k *kernel) reboot() {
	k.pass(90 * time.Second) // of which the new boot's clock counts the last 60
	k.boot++
	k.uptime = 60 * time.Second
	for b := range k.spaces {
		if k.spaces[b].phase == notCreated {
			continue
		}
		lived := k.spaces[b].alive()
		k.end(b)
		k.spaces[b].endedByBoot = lived
	}
}

func (n namespace) alive() bool { return n.phase == living || n.phase == hidden }

// kernelHost implements operation.Host.
type kernelHost struct {
	*kernel
	config
}

// netnsPath is the path of a sandbox's namespace. Each boot has other paths.
func (h kernelHost) netnsPath(b int) string {
	path := "/run/netns/" + h.sandboxName(b)
	if boot := h.spaces[b].boot; boot > 1 {
		path += fmt.Sprint("-", boot)
	}
	return path
}

func (h kernelHost) at(path string) (namespace, bool) {
	for b := range h.sandboxCount() {
		if h.netnsPath(b) == path && h.spaces[b].phase == living {
			return h.spaces[b], true
		}
	}
	return namespace{}, false
}

func (h kernelHost) Netns(path string) (lease.Netns, error) {
	n, ok := h.at(path)
	if !ok {
		return lease.Netns{Path: path}, fmt.Errorf("%w at %q", host.ErrNotNetns, path)
	}
	return lease.Netns{Path: path, Dev: nsfs, Ino: n.inode}, nil
}

func (h kernelHost) QuickState(holder lease.Holder, boot string) (lease.Liveness, error) {
	if holder.BootID != "" && boot != "" && holder.BootID != boot {
		return lease.Dead, nil
	}
	if holder.Netns.Ino == 0 {
		return lease.Unknown, errors.New("its network namespace is not known")
	}
	if n, ok := h.at(holder.Netns.Path); ok && holder.Netns.Ino == n.inode {
		return lease.Alive, nil
	}
	return lease.Unknown, nil
}

func (h kernelHost) AddressesIn(netns lease.Netns) (out []netip.Addr, err error) {
	n, ok := h.at(netns.Path)
	if !ok || n.inode != netns.Ino {
		return nil, host.ErrNetnsGone
	}
	for _, a := range n.addrs {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out, nil
}

func (h kernelHost) inodes(with func(namespace) bool) (map[uint64]bool, error) {
	out := map[uint64]bool{}
	for _, n := range h.spaces {
		if with(n) {
			out[n.inode] = true
		}
	}
	return out, nil
}

func (h kernelHost) ProcessNetns() (map[uint64]bool, error) { return h.inodes(namespace.alive) }

func (h kernelHost) MountedNetns() (map[uint64]bool, error) {
	return h.inodes(func(n namespace) bool { return n.phase == living })
}

func (h kernelHost) Namespaces() ([]host.Namespace, error) {
	var out []host.Namespace
	for b := range h.sandboxCount() {
		n := h.spaces[b]
		if !n.alive() {
			continue
		}
		path := h.netnsPath(b)
		if n.phase == hidden {
			path = fmt.Sprintf("/proc/%d/ns/net", 1000+b)
		}
		seen := host.Namespace{Netns: lease.Netns{Path: path, Dev: nsfs, Ino: n.inode}}
		for _, a := range n.addrs {
			if a.IsValid() {
				seen.Addresses = append(seen.Addresses, host.Address{Addr: a, IfName: ifName})
			}
		}
		out = append(out, seen)
	}
	return out, nil
}

func (h kernelHost) NamespaceIDs(boot string) string { return boot + " host" }

func (h kernelHost) ProveView(stored, boot string, _ iter.Seq[lease.Lease]) error {
	if stored != "" && stored != h.NamespaceIDs(boot) && stored[:len(boot)] == boot {
		return errors.New("the plugin runs elsewhere")
	}
	return nil
}

func (h kernelHost) ForgetNeighbours([]netip.Addr) error { return nil }
