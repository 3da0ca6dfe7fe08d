// Package transact runs the operations of the packages ipam and maintain, each in one transaction
// of a node's store.
//
// Node.Update runs one operation. It first adopts the pool if the store does not know it
// (docs/design.md, "Import and address files"), and replays the spool, that is, the DELs
// that could not be recorded. Then the operation, a function of a Call, reads leases and the states
// of their holders, and changes leases with Move, Record or Put. After the commit Update writes
// host-local's files, called the mirror.
//
// host-local may have served calls in between. Therefore a Call compares each lease that it is
// about to change with host-local's file of the address: a file that names another container shows
// that host-local has assigned the address, and the lease is replaced by one of that container
// (foreign.go).
//
// An Update may need several attempts, that is, transactions: if a damaged record has to be
// repaired first, if host-local's lock is busy, or if a file names another container. The operation
// runs again in each attempt.
package transact
