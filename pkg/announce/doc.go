// Package announce tells a pod's neighbours where its address is now.
//
// A pod that comes back to its address has a new hardware address. Whoever
// talked to it before goes on sending to the former one for 30 to 43 s: a
// neighbour entry that was confirmed is believed for about 30 s, then delayed by
// 5 s, then asked about three times. The kernel does announce an interface that
// comes up (arp_notify, which the bridge plugin sets), but nobody hears it: the
// frame reaches the bridge's port a moment before the port forwards anything.
// docs/decisions.md has the trace.
//
// So an Announcer waits until the address can be used, sends a gratuitous ARP
// (RFC 5227) or an unsolicited neighbour advertisement (RFC 4861, 7.2.6) from
// the pod's own network namespace, and says it a few times more.
package announce
