// Package announce tells a pod's neighbours the hardware address that belongs to its IP address
// now.
//
// A pod that comes back to its address has a new hardware address. Neighbours that talked to it
// before keep sending to the former one for 30 to 43 s: Linux uses a confirmed neighbour entry for
// about 30 s, waits another 5 s, and then probes it three times. The kernel does announce an
// interface that comes up (arp_notify, which the bridge plugin enables), but that frame is lost: it
// reaches the bridge's port a moment before the port forwards. docs/decisions.md has the trace.
//
// So an Announcer waits until the address can be used, sends a gratuitous ARP (RFC 5227) or an
// unsolicited neighbour advertisement (RFC 4861, 7.2.6) from the pod's own network namespace, and
// repeats it a few times.
package announce
