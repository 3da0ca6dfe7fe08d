// Package announce sends a gratuitous ARP or an unsolicited neighbour advertisement for a pod that
// came back to its address, so that its neighbours learn its new hardware address.
//
// Neighbours that talked to the pod before would keep sending to its former hardware address for 30
// to 43 s: Linux uses a confirmed neighbour entry for about 30 s, waits another 5 s, and then
// probes it three times. The kernel does announce an interface that comes up (arp_notify, which the
// bridge plugin enables), but that frame is lost, because it reaches the bridge's port a moment
// before the port forwards (docs/decisions.md, "Announce a returned address").
//
// The plugin adds the attachment to a queue, a directory of empty files (store.Announce). The
// agent's Announcer waits until the address can be used, announces it from the pod's own network
// namespace (RFC 5227; RFC 4861, 7.2.6), and repeats that a few times.
package announce
