package operation

import (
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// says is what host-local's file of an address says, in view of the lease of the address.
type says int

const (
	saysNothing says = iota // there is no file
	saysNobody              // it names nobody, because a power cut has emptied or cut it, for example
	saysLease               // a Hold, or the holder, or last holder, of the lease
	saysOther               // another container
)

// verdict is what has to be done about an address because of its file.
type verdict int

const (
	follow   verdict = iota // the file has to be that of the lease; without a lease it goes
	given                   // host-local has given the address: the lease becomes that of the file's container
	disputed                // two containers may have the address: neither frees it for the other
	release                 // host-local has served the DEL of the lease
	missing                 // the file is missing, which the agent may have to repair
)

// judge compares the lease of an address with host-local's file of it (docs/design.md, "Address
// files"). life is what is known of the container that the file names. holder is the state of the
// holder of a bound lease, and is called only if it is needed. known reports whether the network
// namespace of the holder is known: otherwise the file is all that was known of it.
func judge(state lease.State, file says, life lease.Liveness, known bool, holder func() lease.Liveness) verdict {
	isGone := func() bool {
		l := holder()
		return l == lease.Dead || l == lease.Unknown && !known
	}
	switch {
	case file == saysNobody && state == lease.None:
		return given
	case file == saysNothing && state == lease.Bound && isGone():
		return release
	case file == saysNothing && state == lease.Bound:
		return missing
	case file != saysOther || life == lease.Dead:
		return follow
	case state == lease.Bound && !isGone():
		return disputed
	}
	return given
}
