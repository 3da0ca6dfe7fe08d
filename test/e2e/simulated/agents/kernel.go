//go:build simulated

package main

import (
	"fmt"
	"iter"
	"net/netip"
	"sync"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// kernel is the host of a simulated node: the network namespaces of its containers, by path.
type kernel struct {
	mu     sync.Mutex
	inodes map[string]uint64
	last   uint64
}

func netnsPath(container string) string { return "/run/netns/" + container }

// begin creates the namespace of a container.
func (k *kernel) begin(container string) lease.Netns {
	k.mu.Lock()
	defer k.mu.Unlock()
	path := netnsPath(container)
	if k.inodes == nil {
		k.inodes, k.last = map[string]uint64{}, 100
	}
	if k.inodes[path] == 0 {
		k.last++
		k.inodes[path] = k.last
	}
	return lease.Netns{Path: path, Dev: 4, Ino: k.inodes[path]}
}

// end removes the namespace of a container.
func (k *kernel) end(container string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.inodes, netnsPath(container))
}

func (k *kernel) inode(path string) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.inodes[path]
}

func (k *kernel) Netns(path string) (lease.Netns, error) {
	ino := k.inode(path)
	if ino == 0 {
		return lease.Netns{Path: path}, fmt.Errorf("%w: %s", host.ErrNotNetns, path)
	}
	return lease.Netns{Path: path, Dev: 4, Ino: ino}, nil
}

func (k *kernel) QuickState(h lease.Holder, boot string) lease.Liveness {
	switch ino := k.inode(h.Netns.Path); {
	case h.BootID != boot:
		return lease.Dead
	case ino != 0 && ino == h.Netns.Ino:
		return lease.Alive
	}
	return lease.Unknown
}

func (k *kernel) PathGone(h lease.Holder) (bool, error) {
	return k.inode(h.Netns.Path) != h.Netns.Ino, nil
}

func (k *kernel) AddressesIn(n lease.Netns) ([]netip.Addr, error) {
	if k.inode(n.Path) != n.Ino {
		return nil, host.ErrNetnsGone
	}
	return nil, nil
}

func (k *kernel) ProcessNetns() host.NetnsSet { return k.MountedNetns() }

func (k *kernel) MountedNetns() host.NetnsSet {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]uint64, 0, len(k.inodes))
	for _, ino := range k.inodes {
		all = append(all, ino)
	}
	return host.NewNetnsSet(nil, all...)
}

func (k *kernel) Namespaces() ([]host.Namespace, error) { return nil, nil }

func (k *kernel) NamespaceIDs(boot string) string { return boot + " simulated" }

func (k *kernel) ProveView(string, string, iter.Seq[lease.Lease]) error { return nil }

func (k *kernel) ForgetNeighbours([]netip.Addr) error { return nil }
