// Package host reads clocks and evidence of life from the kernel, and changes neighbour entries and
// hardware addresses. Evidence of life is whether the network namespace of a lease's holder still
// exists, and which addresses its interfaces have. The answer is a lease.Liveness. It is Dead only
// with proof: the lease was bound in another boot, or neither its path nor any process leads to the
// namespace (docs/design.md, "Evidence of life").
//
// Host reads one /proc, which must be the host's. ProveView proves that it is, for programs that
// may run in a container (docs/design.md, "The process view"). Evidence combines what Host reads
// with the leases of other containers, for one decision: for a bound lease the question is whether
// the holder's namespace exists (Prove), for a hold whether an interface of the last holder still
// has the address (Last).
//
// For pods that return to an address the package also uses netlink: it deletes neighbour entries,
// and sets the hardware address of interfaces.
package host
