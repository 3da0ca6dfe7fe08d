// Package lease is the state machine of one address. It is pure: Apply maps a lease, an event and a
// time to a new lease or an error, and reads no clock, file or kernel.
//
//	          Bind                     Release
//	None ------------->  Bound  ------------------------->  Held
//	 ^                    |  ^                               |  |
//	 |   Release without  |  |             Bind              |  |
//	 +--------------------+  +---- same key: same address ---+  |
//	 |    key; Revoke                                           |
//	 +----------------------------------------------------------+
//	                   Expire, Yield, Revoke
//
// Reserve makes a Held lease of an address in state None, for a pod that does not exist yet.
//
// The holder of a Bound lease is an attachment: a container id and an interface name. The key of a
// lease is the pod interface that the address is kept for: pool, namespace, pod name and interface
// name, without the UID. The window is how long the pod's annotation asks to keep the address.
//
// A Held lease keeps the address after the release by its last holder. There are two kinds:
//
//   - A hold lasts for the window. Any pod with the key may claim it, that is, be bound to the
//     address again, whatever its UID. No other pod gets the address.
//   - A cool-down is short. It follows the release of a pod that has no window. Only the same pod
//     (UID) may claim it, and it ends early if the pool has no other address.
//
// Two rules apply to all events. Fencing: a release has an effect only if it names the current
// holder. Evidence: another container takes over a bound lease, or the lease is collected, only if
// the holder is proven dead. A Held lease is claimed, expires or yields only if no interface of the
// last holder has the address any more, because a sandbox may go on after its DEL (see Liveness).
// An interface, file or process that could not be read proves nothing.
//
// docs/design.md, "The lease", has the reasons, and "Glossary" all words.
package lease
