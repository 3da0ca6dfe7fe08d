// Package transact runs the use cases of the packages ipam and maintain, each in one transaction of
// a node's store.
//
// A call (Node.Update) begins with what the host shows of a pool that is not known, and with the
// releases that were spooled. Then the use case reads leases and evidence of life, and changes
// leases; host-local's files are brought in step with what it leaves behind.
package transact
