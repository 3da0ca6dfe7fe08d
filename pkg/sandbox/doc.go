// Package sandbox reads evidence of life from the kernel: whether the network namespace of a
// lease's holder still exists. It answers with three values, and Dead only with proof: another
// boot, or a namespace that neither its path nor any process leads to (docs/design.md, "Evidence of
// life").
//
// It reads one /proc, which must be the host's.
//
// For pods that return to an address it also uses netlink: it deletes neighbour entries, and sets
// the hardware address of interfaces.
package sandbox
