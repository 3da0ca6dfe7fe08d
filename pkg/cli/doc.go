// Package cli implements the commands of leasectl, one in each file. Commands that only read use
// the store; those that change leases call pkg/ipam.
package cli
