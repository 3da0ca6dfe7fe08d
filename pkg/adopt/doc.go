// Package adopt learns from the host which addresses of a pool are in use or
// promised, before anything is allocated: at the first use of a pool, and
// whenever a store is lost (docs/design.md, "Sources, and how they are weighed").
//
// Readers turn what one source says into claims, and decide nothing; each has
// a file of its own:
//
//	living network namespaces   living.go     the address is on an interface now
//	libcni's result cache       cache.go      which pod, which container, which window
//	host-local's files          hostlocal.go  in use, by a container or by nobody known
//	our marks in those files    hostlocal.go  held, for whom and until when
//	the Kruise fork's files     kruise.go     reserved for a pod
//
// Decide weighs the claims and says which leases they amount to. It looks at
// nothing else. What contradicts itself ends as the more cautious lease: an
// address in use for nothing is noticed and collected, one that two pods have
// is an outage.
package adopt
