// Package ipam has everything that is done to the leases of a node: by the CNI verbs, by the agent
// and by operators.
//
// The verbs are Assign (ADD), Release (DEL), Verify (CHECK), Collect (GC) and Status. Each has a
// file. Package cniplugin calls them with parsed requests, and turns their results and errors into
// CNI's.
//
// A verb that changes leases runs in a transaction of package transact, which first adopts the pool
// if necessary and replays spooled DELs. Then the verb reads, decides without writing anything, and
// writes its decision at the end. If it refuses the call, the transaction is committed, with what
// was done before the decision and nothing of the decision (docs/design.md, "I5: Whole").
//
// Assign chooses an address of each range set in the order of docs/design.md, "Choosing an
// address". The leases of the pod's key that other containers have or had are called former leases
// here; an address that is chosen is a pick.
//
// Survey reads the store and the state of the leases' holders, Plan decides which actions are due,
// and Act performs them (docs/design.md, "Survey, plan, act"). The agent repeats these three steps,
// `leasectl gc` performs them once. The agent also applies to the leases what the API server shows
// of the node's pods (Follow, NamePods, Defer, RevokePods, EndHolds), and reads the leases and the
// journal to publish them (List, Journal). leasectl uses Reserve, Revoke, Preview, Import, Export,
// Loss and AcceptLoss.
//
// A program that changes leases because of what it sees of the host must prove that it sees the
// processes and mounts of the node, its view (docs/design.md, "The process view").
package ipam
