// Package store keeps the leases of a node in a bbolt file: transactions, indexes, journal, check.
// No process keeps the file open: each Update and View locks the store, opens the file, runs one
// closure in one transaction, commits, closes and unlocks.
//
// Beside the leases the store has the journal of what happened to leases (journal.go), and the
// addresses of range sets (sets.go, usage.go). DELs that could not be recorded in the store are
// queued in the run directory (package rundir); a View shows them as applied (queued.go). A store
// is lost if its file is missing or damaged although it was in use; Update then replaces it by an
// empty one that has the reason (docs/design.md, "A lost store").
//
// The lock is a separate file in the run directory. It is acquired by a blocking flock(2) with a
// deadline, because bbolt polls its own lock every 50 ms, which takes longer and is unfair. After
// locking, and again after a commit, the path must still lead to the open file, because the file
// may have been removed or replaced.
//
// The format on disk, with all integers big-endian. P is the number of a pool, A the family byte
// and the address:
//
//	meta      format, boot, look, spaces, lost         the node's state
//	pools     dataDir 0 network        -> P, imported, checksum
//	leases    P A                      -> record       the authoritative records
//	holders   container 0 ifname 0 P A -> -            bound leases by holder
//	keys      P ns 0 name 0 ifname 0 A -> -            leases by key; those that are named by "@" and the name, too
//	expiry    P end(wall, ns) A        -> -            holds by their end
//	taken     P A/256                  -> 256 bits     addresses that have a lease
//	sets      P set                    -> counts, cursor, size and ranges (SetRanges)
//	journal   sequence                 -> entry        a ring
//	counters  name                     -> count
//	named pods  ns 0 uid               -> reservation name, window of a pod that has no lease yet
//
// The buckets holders, keys and expiry, and the counts in sets, are indexes of leases. Only Put
// writes them, and Check verifies them.
package store
