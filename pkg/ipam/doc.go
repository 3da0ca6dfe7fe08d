// Package ipam is what the plugin does, one use case a file and one store
// transaction each: Assign (ADD), Release (DEL), Verify (CHECK), Collect (GC),
// Status, and Revoke for operators.
//
// Every transaction begins with the same housekeeping (Service.update): spooled
// releases are replayed, a new boot turns the leases of the last one into
// releases. Then the use case looks, decides without writing anything, and
// writes its decision at the end. So a refusal keeps the housekeeping and
// leaves nothing half done (I5).
package ipam
