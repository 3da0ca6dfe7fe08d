// Package ipam has the verbs of the plugin: Assign (ADD), Release (DEL), Verify (CHECK), Collect
// (GC) and Status. Each has a file, and runs in one transaction of the store.
//
// Every transaction begins alike (pkg/transact): it replays spooled releases, and releases the
// leases of an earlier boot. Then the verb reads, decides without writing anything, and writes its
// decision at the end. A refusal therefore commits what was done before the verb, and nothing of
// the verb (docs/design.md, "I5: Whole").
package ipam
