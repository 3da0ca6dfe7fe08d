// Package ipam is what the plugin does, one CNI verb a file and one store transaction each: Assign
// (ADD), Release (DEL), Verify (CHECK), Collect (GC) and Status.
//
// Every transaction begins with the same housekeeping (pkg/transact): spooled releases are
// replayed, a new boot turns the leases of the last one into releases. Then the use case looks,
// decides without writing anything, and writes its decision at the end. So a refusal keeps the
// housekeeping and leaves nothing half done (docs/design.md, "I5: Whole").
package ipam
