// Package look looks at what is really there: the sandboxes that the runtime knows, the network namespaces on a node
// and the addresses in them.
package look

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// NetNSes lists the network namespaces that a node's runtime keeps, as paths of the host. root is the node's file system.
func NetNSes(root string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(root, "run/netns"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var paths []string
	for _, e := range entries {
		paths = append(paths, filepath.Join(root, "run/netns", e.Name()))
	}
	return paths, err
}

// Addresses reads the addresses in a network namespace by interface, without loopback and link-local ones.
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

// Inside calls f with the calling thread in another network namespace. What f connects is there; it must not start
// goroutines that do.
func Inside(path string, f func() error) error {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine and takes the foreign namespace with it.
		runtime.LockOSThread()
		ns, err := netns.GetFromPath(path)
		if err == nil {
			err = netns.Set(ns)
			ns.Close()
		}
		if err != nil {
			done <- fmt.Errorf("%s: %w", path, err)
			return
		}
		done <- f()
	}()
	return <-done
}
