// Package transact runs the operations of the packages ipam and maintain, each in one transaction
// of a node's store.
//
// A call (Node.Update) first adopts a pool that is not known, and replays spooled releases. Then
// the operation reads leases and the state of their holders, and changes leases. After the commit
// the call writes host-local's files.
package transact
