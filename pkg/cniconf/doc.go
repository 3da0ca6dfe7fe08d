// Package cniconf reads CNI configurations as a runtime does, reports whether they use leasehold,
// and edits them. For each network it reports whether leasehold's plugin assigns the addresses.
// That depends on which files the runtime loads, which IPAM plugin they name, and which binary has
// that name (docs/facts.md, "The first configuration in lexical order is loaded").
//
// Except for a temporary file and Change.Write, the package writes nothing. If something could not
// be read, the result says so, because that proves neither that leasehold is in use nor that it is
// not.
package cniconf
