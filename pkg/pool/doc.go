// Package pool has ranges, range sets, and the next address in host-local's order. It is pure: it
// reads no file, clock or store. Callers pass a function that finds free addresses.
//
// The rules are those of host-local, so that a configuration of host-local assigns the same
// addresses in the same order:
//
//   - A Range is a part of a subnet. By default it starts after the network address and ends before
//     the IPv4 broadcast address or at the last IPv6 address. The network and the broadcast address
//     are assigned only if the user sets them as start or end.
//   - A Set is a list of ranges of one address family. An interface gets one address of each set.
//   - The next address is the first free one after the last that was assigned (the cursor), over
//     all ranges of the set in order, wrapping around at the end. Gateways are skipped.
package pool
