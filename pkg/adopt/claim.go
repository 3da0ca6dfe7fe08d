package adopt

import (
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Kind is the kind of source that a claim comes from, the weakest first.
type Kind int

const (
	File      Kind = 1 + iota // host-local's file: in use, whatever became of the container
	DeadCache                 // libcni's cache names a namespace that is gone: a pod that got no DEL
	Kruise                    // the Kruise fork reserved it for a pod
	HoldFile                  // our own mark in host-local's file: a hold
	LiveCache                 // libcni's cache names a namespace that lives
	Snapshot                  // the lease as the agent last saw it in the store
	Living                    // the address is in a living namespace
)

// String is the kind's name in dry runs.
func (k Kind) String() string {
	names := [...]string{"nothing", "file", "dead cache entry", "kruise reservation", "held marker", "cache entry",
		"snapshot", "living netns"}
	if k < 0 || int(k) >= len(names) {
		return names[0]
	}
	return names[k]
}

// Claim is what one source says of one address. Fields that the source does not
// have are zero.
type Claim struct {
	Kind    Kind
	Address netip.Addr
	Source  string // for people: what was read, and where

	Namespace, Name, UID string // of the pod
	ContainerID, IfName  string
	Netns                lease.Netns // Ino != 0 only if it lives now
	MAC                  string

	Window      time.Duration
	WindowKnown bool

	// Released says that a hold is running. It ends at Until, or never where
	// that is zero; Firm holds are for the pod's name, others for its UID.
	Released bool
	Firm     bool
	Until    time.Time

	Modified time.Time   // of the file: of two that disagree the newer one counts; zero if it cannot be read
	Lease    lease.Lease // Snapshot only: the whole lease
}

// Finding is a lease to adopt, and why, in one sentence.
type Finding struct {
	Lease lease.Lease
	Why   string
	Seen  bool // an interface of the lease's network namespace has the address
}
