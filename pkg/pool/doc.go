// Package pool knows addresses: ranges, the sets they form, their gateways,
// and which address comes next. It is pure: it reads no file, no clock and no
// store, and asks its caller which addresses are free.
//
// The rules are those of host-local, so that a configuration written for it
// means the same addresses here, in the same order:
//
//   - A Range is a part of a subnet. Without a start it begins after the
//     network address; without an end it stops before an IPv4 broadcast
//     address and at the last IPv6 address. Network and broadcast address are
//     handed out only where the user names them as start or end.
//   - A Set is a list of ranges of one family; an interface gets one address
//     of each set.
//   - The next address is the one after the last handed out (the cursor), over
//     all ranges of the set in their order, once around. Gateways are skipped.
package pool
