// Package ipam has the CNI verbs: what a call of the plugin does to the leases of a node.
//
// The verbs are Assign (ADD), Release (DEL), Verify (CHECK), Collect (GC) and Status. Each has a
// file. Package cniplugin calls them with parsed requests, and turns their results and errors into
// CNI's.
//
// A verb that changes leases runs in a transaction of package operation, which first imports the
// pool if necessary and applies queued DELs. Then the verb reads, decides without writing anything,
// and writes its decision at the end. If it refuses the call, the transaction is committed, with
// what was done before the decision and nothing of the decision (docs/design.md, "I5: Whole").
//
// Assign chooses an address of each range set in the order of docs/design.md, "Choosing an
// address". The leases of the pod's key that other containers have or had are called former leases
// here; an address that is chosen is a pick.
package ipam
