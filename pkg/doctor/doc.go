// Package doctor finds what is wrong with leasehold on a node or in a cluster, and names the
// commands that repair it. A check is an entry of a table; pkg/cli prints the report. Whether the
// container runtime calls leasehold is decided by pkg/cniconf, here as in the agent.
//
// It changes nothing. What could not be read is in the report as such: it is no finding.
package doctor
