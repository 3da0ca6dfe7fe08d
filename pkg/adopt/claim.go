package adopt

import (
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Kind is the kind of source of a claim. Later ones have precedence.
type Kind int

const (
	File      Kind = 1 + iota // host-local's file of the address
	DeadCache                 // libcni's cache names a namespace that is gone: there was no DEL
	Kruise                    // a reservation of the Kruise fork
	HoldFile                  // our mark of a hold in host-local's file
	LiveCache                 // libcni's cache names a living namespace
	Snapshot                  // the lease in the agent's snapshot of the store
	Living                    // an interface in a living namespace has the address
)

// String returns the kind's name, as it appears in dry runs.
func (k Kind) String() string {
	names := [...]string{"nothing", "file", "dead cache entry", "kruise reservation", "held marker", "cache entry",
		"snapshot", "living netns"}
	if k < 0 || int(k) >= len(names) {
		return names[0]
	}
	return names[k]
}

// Claim is what one source tells about one address. Fields that the source does not have are zero.
type Claim struct {
	Kind    Kind
	Address netip.Addr
	Source  string // what was read, and its path, for messages

	Namespace, Name, UID string // of the pod
	ContainerID, IfName  string
	Netns                lease.Netns // Ino != 0 only if it lives now
	MAC                  string

	Window      time.Duration
	WindowKnown bool

	// Released reports whether there is a hold. It ends at Until, or never if that is zero. Firm
	// holds are for the pod's name, others for its UID.
	Released bool
	Firm     bool
	Until    time.Time

	Modified time.Time   // of the file; zero if it cannot be read
	Lease    lease.Lease // of a Snapshot only
}

// Finding is a lease to adopt.
type Finding struct {
	Lease lease.Lease
	Why   string // one sentence
	Seen  bool   // an interface of the lease's network namespace has the address
}
