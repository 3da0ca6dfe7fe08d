// Package lease is the state machine of one address. It decides and does
// nothing else: a lease, an event and a time go in, a new lease or an error
// comes out. No clock is read, no file and no kernel is looked at.
//
//	          Bind                     Release, Orphan
//	None ------------->  Bound  ------------------------->  Held
//	 ^                    |  ^                               |  |
//	 |   Release without  |  |             Bind              |  |
//	 +--------------------+  +---- same key: same address ---+  |
//	 |    key; Drop                                             |
//	 +----------------------------------------------------------+
//	                   Expire, Yield, Drop
//
// Bound belongs to a holder, an attachment (container id, interface name).
// Held is what remains after its release:
//
//   - firm: the window that the annotation promised. Everybody of the key may
//     claim it, whatever the UID; nobody else gets the address.
//   - soft: a short hold that every other pod gets. Only the same pod (UID) may
//     claim it; it yields when the pool has nothing better.
//
// Two rules stand above all moves. Fencing: a release acts only for the holder
// that it names. Evidence: a bound lease is taken over or collected only from a
// holder that is proven dead. A held one is claimed, ended or yielded only where
// its last holder has lost the address: after a DEL its sandbox may live on, and
// a pod whose interface was unplugged does, so it is the address that tells (see
// Life). What could not be looked at is never a proof.
package lease
