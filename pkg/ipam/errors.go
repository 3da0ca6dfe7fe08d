package ipam

import "errors"

var (
	// ErrExhausted is returned if no address of a range set can be assigned.
	ErrExhausted = errors.New("no IP addresses available in range set")
	// ErrAddressInUse is returned while the pod's former sandbox still has its address, or is not
	// proven to be gone. The caller should try again.
	ErrAddressInUse = errors.New("the pod's address may still be in use by its former sandbox")
	// ErrUnavailable is returned if a requested address is bound to another container, or held for
	// another pod.
	ErrUnavailable = errors.New("requested IP address is not available")
	// ErrRequest is returned for requested addresses that are not in the configured ranges.
	ErrRequest = errors.New("failed to allocate all requested IPs")
	// ErrNetns is returned if there is no network namespace at CNI_NETNS. The sandbox has ended,
	// and its ADD is late (docs/facts.md, "A killed plugin leaves its IPAM plugin running").
	ErrNetns = errors.New("CNI_NETNS is not an existing network namespace")
	// ErrCheckFailed is returned by Verify if the container does not have the addresses that it
	// should have.
	ErrCheckFailed = errors.New("the container does not have its addresses")
	// ErrNotReady is returned by Status if no ADD can succeed.
	ErrNotReady = errors.New("the plugin cannot assign addresses")
)
