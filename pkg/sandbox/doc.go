// Package sandbox asks the kernel whether the network namespace of a lease's holder still exists,
// and which addresses its interfaces have. The answer is a lease.Liveness. It is Dead only with
// proof: the lease was bound in another boot, or neither its path nor any process leads to the
// namespace (docs/design.md, "Evidence of life").
//
// It reads one /proc, which must be the host's. ProveView proves that it is, for programs that may
// run in a container (docs/design.md, "Whose view it is").
//
// For pods that return to an address it also uses netlink: it deletes neighbour entries, and sets
// the hardware address of interfaces.
package sandbox
