package ipam

import (
	"net/netip"
)

// elsewhere moves the caller into a container, in which it finds no namespace and no process of the
// node, or back.
func (w *world) elsewhere(away bool) {
	w.service.Node.Plugin = !away
	if !away {
		w.netns, w.inPID, w.spaces = w.home.netns, w.home.inPID, ""
		return
	}
	w.home = *w.machine
	w.netns, w.inPID, w.spaces = map[string]uint64{}, map[uint64]bool{}, " elsewhere"
}

// has puts an address on the interface of a sandbox.
func (w *world) has(container, addr string) {
	path := netnsPath(container)
	w.addrs[path] = append(w.addrs[path], netip.MustParseAddr(addr))
}
