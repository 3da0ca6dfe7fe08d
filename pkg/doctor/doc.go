// Package doctor finds problems of leasehold on a node or in a cluster, and names the commands that
// repair them. Each check is an entry of a table, nodeChecks or clusterChecks. pkg/cli prints the
// report. Package cniconf decides whether the container runtime calls leasehold, both here and in
// the agent.
//
// The checks change nothing. If something could not be read, it is in Report.Unchecked and not a
// finding.
package doctor
