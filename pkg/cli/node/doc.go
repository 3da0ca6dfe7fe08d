// Package node implements the commands of leasectl, which are about the node on which it runs.
// Those that only read use the store; those that change leases call pkg/maintain.
package node
