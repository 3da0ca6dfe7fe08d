// Package cli is leasectl's command tree: one verb a file, each a plain
// function over the store. Nothing here decides about a lease; what changes one
// goes through pkg/ipam.
package cli
