// Package cniconf reads the CNI configurations of a node as a container runtime does, and reports
// whether what is loaded leads to leasehold's plugin: which file is loaded, which IPAM plugin it
// names, and which binary that name stands for (docs/facts.md, "The first configuration in lexical
// order is loaded").
//
// It changes nothing. What could not be read is reported as such: it proves neither that leasehold
// is in use nor that it is not.
package cniconf
