// Package lease is the state machine of one address. It is pure: Apply maps a lease, an event and a
// time to a new lease or an error, and reads no clock, file or kernel.
//
//	          Bind                     Release, Orphan
//	None ------------->  Bound  ------------------------->  Held
//	 ^                    |  ^                               |  |
//	 |   Release without  |  |             Bind              |  |
//	 +--------------------+  +---- same key: same address ---+  |
//	 |    key; Revoke                                           |
//	 +----------------------------------------------------------+
//	                   Expire, Yield, Revoke
//
// A Bound lease belongs to a holder, an attachment (container id, interface name). A Held lease is
// what remains after the holder's release:
//
//   - firm: for the window of the annotation. Any pod with the key may claim it, whatever its UID;
//     no other pod gets the address.
//   - soft: a short hold that every other pod gets. Only the same pod (UID) may claim it, and it is
//     ended early when the pool is exhausted.
//
// Two rules apply to all events. Fencing: a release has an effect only for the holder that it
// names. Evidence: a bound lease is taken over or collected only from a holder that is proven dead.
// A held lease is claimed, expired or yielded only if its last holder no longer has the address:
// the sandbox may outlive its DEL, and a pod whose interface was unplugged does, so the address
// decides (see Liveness). What could not be read proves nothing.
package lease
