// Package store keeps the leases of a node in one bbolt file, and lets nobody
// hold it: Update and View lock, open, run one closure, commit, close.
//
// The lock is a file of its own in the run directory, taken with a blocking
// flock under a deadline; bbolt's own polling lock is never waited for (FACTS
// 7.2). After locking, and again after a commit, the path must still be the
// file that was opened (7.12).
//
// On disk (format 1), all integers big-endian, P = a pool's number, A = family
// byte and address:
//
//	meta      format, boot, look, spaces, lost         what the node last did
//	pools     dataDir 0 network        -> P, known
//	leases    P A                      -> record       the one truth
//	holders   container 0 ifname 0 P A -> -            bound leases by holder
//	keys      P ns 0 name 0 ifname 0 A -> -            leases by key
//	expiry    P end(wall, ns) A        -> -            holds by their end
//	taken     P A/256                  -> 256 bits     addresses that have a lease
//	sets      P set                    -> cursor, counts
//	windows   P ns 0 name 0 ifname     -> window       what the agent knows of a key
//	journal   sequence                 -> entry        a ring
//	counters  name                     -> count
//
// Everything below leases is derived from it, by Put alone; Check proves it.
package store
