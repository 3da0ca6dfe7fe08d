// Package adopt finds out from the host which addresses of a pool are in use or reserved, before
// any is assigned: at the first use of a pool, and after a store was lost (docs/design.md,
// "Sources, and how they are weighed").
//
// A reader for each source returns claims, and decides nothing:
//
//	living network namespaces   living.go     the address is on an interface now
//	libcni's result cache       cache.go      which pod, which container, which window
//	host-local's files          hostlocal.go  in use, by a container or an unknown owner
//	our marks in those files    hostlocal.go  held, for which pod and until when
//	the Kruise fork's files     kruise.go     reserved for a pod
//
// Decide returns the leases that follow from the claims, and uses nothing else. If claims
// contradict each other the address counts as in use: a lease that is not needed is found and
// released later, while an address that two pods have is an outage.
package adopt
