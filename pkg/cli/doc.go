// Package cli implements the commands of leasectl, and those of its copy kubectl-leasehold, which
// are methods of cluster. Commands of a node that only read use the store; those that change leases
// call pkg/ipam. What doctor prints as a repair is in repair.go.
package cli
