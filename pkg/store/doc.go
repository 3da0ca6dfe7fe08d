// Package store keeps the leases of a node in one bbolt file. No process keeps it open: Update and
// View lock, open, run one closure, commit and close.
//
// The lock is a separate file in the run directory, taken with a blocking flock(2) and a deadline,
// because bbolt's own lock is polled every 50 ms. Waiting for it would take longer, and be unfair.
// After locking, and again after a commit, the path must still lead to the file that was opened: it
// may have been removed or replaced.
//
// Format 1 on disk, with all integers big-endian. P is the number of a pool, A the family byte and
// the address:
//
//	meta      format, boot, look, spaces, lost         the node's state
//	pools     dataDir 0 network        -> P, adopted, checksum
//	leases    P A                      -> record       the authoritative records
//	holders   container 0 ifname 0 P A -> -            bound leases by holder
//	keys      P ns 0 name 0 ifname 0 A -> -            leases by key
//	expiry    P end(wall, ns) A        -> -            holds by their end
//	taken     P A/256                  -> 256 bits     addresses that have a lease
//	sets      P set                    -> counts, cursor, size and ranges (SetRanges)
//	windows   P ns 0 name 0 ifname     -> window       windows that the agent has set, by key
//	journal   sequence                 -> entry        a ring
//	counters  name                     -> count
//
// The buckets holders, keys, expiry and taken, and the counts in sets, are indexes of leases. Only
// Put writes them, and Check verifies them.
package store
