package ipam

import (
	"errors"
)

var (
	// ErrExhausted is returned when a range set has no address to hand out.
	ErrExhausted = errors.New("no IP addresses available in range set")
	// ErrAddressInUse is returned when the pod's address is still held by its
	// old sandbox, which lives or is not proven to be gone. The caller should come
	// again.
	ErrAddressInUse = errors.New("the pod's address may still be in use by its former sandbox")
	// ErrUnavailable is returned when a requested address belongs to somebody else.
	ErrUnavailable = errors.New("requested IP address is not available")
	// ErrRequest is returned for requested addresses that the configuration
	// cannot give.
	ErrRequest = errors.New("failed to allocate all requested IPs")
	// ErrNetns is returned when the caller's own network namespace is not there (any more): a late
	// ADD of a sandbox that has ended (docs/facts.md, "A killed plugin leaves its IPAM plugin
	// running").
	ErrNetns = errors.New("CNI_NETNS is no living network namespace")
	// ErrCheckFailed is returned by Verify when the container does not have the
	// addresses that it should have.
	ErrCheckFailed = errors.New("the container does not hold its addresses")
	// ErrNotReady is returned by Status when an ADD could not work.
	ErrNotReady = errors.New("the plugin cannot assign addresses")
)
