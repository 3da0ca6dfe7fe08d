// Package importer makes leases from what the host shows, before an address is assigned: at the
// first use of a pool, and after a store was lost (docs/design.md, "What is imported").
//
// A reader for each source returns candidates, and decides nothing. A candidate is what one source
// shows of one address: which container or pod it belongs to, whether it is in use or held, and
// until when.
//
//	living network namespaces   living.go     the address is on an interface now
//	libcni's result cache       cache.go      which pod, which container, which window
//	host-local's files          hostlocal.go  in use, by a container or an unknown owner
//	our holds in those files    hostlocal.go  held, for which pod and until when
//	the Kruise fork's files     kruise.go     reserved for a pod
//
// decide is a pure function that returns the leases to import from all candidates of a pool. If
// candidates contradict each other, the address counts as in use: a lease that is not needed is
// found and released later, while an address that two pods have is an outage.
package importer
