// Package sandbox looks at the kernel for evidence of life: is the network
// namespace of a lease's holder still there? It answers with three values, and
// says dead only with proof: another boot, or a namespace that neither its
// path nor any process leads to (docs/design.md, "Evidence of life").
//
// It looks below one /proc, which must be the host's own.
//
// For pods that come back to an address it also does what a netlink socket can
// do for them: it forgets neighbours, and gives interfaces a hardware address.
package sandbox
