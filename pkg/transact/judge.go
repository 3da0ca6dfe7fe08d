package transact

import (
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// says is what host-local's file of an address says, in view of the lease of the address.
type says int

const (
	saysNothing  says = iota // there is no file
	saysNobody               // it names nobody, because a power cut has emptied or cut it, for example
	saysHeld                 // a Hold
	saysHolder               // the holder, or last holder, of the lease
	saysLeftOver             // another container, of an earlier boot
	saysOther                // another container
)

// verdict is what has to be done about an address because of its file.
type verdict int

const (
	follow   verdict = iota // the file has to be that of the lease; without a lease it goes
	imports                 // the file gets a lease of its own, in place of the present one
	disputed                // two containers may have the address: neither frees it for the other
	release                 // host-local has served the DEL of the lease
)

// judge compares the lease of an address with host-local's file of it. The file says that an
// address is in use, the store says by whom (docs/design.md, "Address files").
// life is the state of the holder of a bound lease, and is called only if it is needed. known
// reports whether the network namespace of the holder is known: otherwise the file is all that was
// known of it.
func judge(state lease.State, file says, known bool, life func() lease.Liveness) verdict {
	switch {
	case state == lease.None && (file == saysOther || file == saysNobody || file == saysHolder):
		return imports
	case state == lease.None:
		return follow
	case state == lease.Held && file == saysOther:
		return imports
	case state == lease.Bound && file == saysOther:
		if l := life(); l == lease.Dead || l == lease.Unknown && !known {
			return imports
		}
		return disputed
	case state == lease.Bound && file == saysNothing:
		if l := life(); l == lease.Dead || l == lease.Unknown && !known {
			return release
		}
	}
	return follow
}
