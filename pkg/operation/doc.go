// Package operation runs each operation of ipam and maintain in one transaction, and writes address
// files.
//
// Node.Update runs one operation. It first imports the pool if the store does not know it
// (docs/design.md, "Import and address files"), and applies the queued DELs. Then the operation, a
// function of a Call, reads leases and the states of their holders, and changes leases with End,
// Record or Put. Update writes the address files of the changed leases, host-local's files, before
// and after the commit (docs/design.md, "Address files").
//
// host-local may have served calls in between. Therefore a Call compares each lease that it is
// about to change with the address file: judge decides what follows from both.
//
// An Update may need several attempts, that is, transactions: if a damaged record has to be
// repaired first, if host-local's lock is busy, or if the store was replaced. The operation runs
// again in each attempt.
package operation
