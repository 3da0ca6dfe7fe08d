// Package inspect inspects the state of nodes: the sandboxes of the runtime, the network
// namespaces, the addresses in them, leases, reservations and metrics.
package inspect

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// NetNSes returns the paths on the host of a node's network namespaces, none if the node is off. It
// leaves out those of the node's own, which CRI-O has for pods with the node's network. root is the
// node's file system.
func NetNSes(root string) (paths []string) {
	own, err := os.Stat(filepath.Join(root, "proc/1/ns/net"))
	if err != nil {
		return nil
	}
	all, _ := filepath.Glob(filepath.Join(root, "run/netns/*"))
	for _, path := range all {
		if ns, err := os.Stat(path); err != nil || !os.SameFile(ns, own) {
			paths = append(paths, path)
		}
	}
	return paths
}

// Addresses returns the addresses in a network namespace by interface, except loopback and
// link-local ones.
func Addresses(path string) (map[string][]netip.Addr, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, err
	}
	found := map[string][]netip.Addr{}
	for _, link := range links {
		addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap().IsGlobalUnicast() {
				found[link.Attrs().Name] = append(found[link.Attrs().Name], ip.Unmap())
			}
		}
	}
	return found, nil
}

// DialIn returns a function that connects from a network namespace, on a thread in that namespace.
func DialIn(path string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		var thread sync.WaitGroup
		thread.Go(func() {
			// Never unlocked, so that the thread ends with the goroutine and no other one gets it.
			runtime.LockOSThread()
			var ns netns.NsHandle
			if ns, err = netns.GetFromPath(path); err == nil {
				err = errors.Join(netns.Set(ns), ns.Close())
			}
			if err == nil {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			}
		})
		thread.Wait()
		return conn, err
	}
}
