package importer

import (
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// kind is the source of a candidate.
type kind int

const (
	fromFile      kind = 1 + iota // host-local's file of the address
	fromDeadCache                 // libcni's cache has an entry whose namespace is gone: there was no DEL
	fromKruise                    // a reservation of the Kruise fork
	fromHoldFile                  // our mark of a hold in host-local's file
	fromLiveCache                 // libcni's cache has an entry whose namespace exists
	fromLiving                    // an interface in a network namespace has the address
)

// candidate is what one source shows of one address. Fields that the source does not have are zero.
type candidate struct {
	Kind    kind
	Address netip.Addr
	Source  string // what was read, and its path, for messages
	path    string // fromKruise: of the file
	set     int    // the index of the range set of the address, -1 if it is in none

	Namespace, Name, UID string // of the pod
	ReserveAs            string // its reservation name; "" if it has none, or if the source does not have it
	ContainerID, IfName  string
	Netns                lease.Netns // Ino is 0 if no namespace is at the path now
	MAC                  string

	Window      lease.Window
	WindowKnown bool

	Released bool      // the source shows a release, and so a hold
	IsHold   bool      // it is a hold; otherwise a cool-down
	Until    time.Time // the end of the hold; zero if it has none

	Modified   time.Time // of the file; zero if it cannot be read
	Unreadable bool      // fromFile: the file may name anybody
}

// Finding is a lease to import.
type Finding struct {
	Lease lease.Lease
	Why   string // one sentence, for the journal and for dry runs

	pod pod       // of the source that shows the owner
	at  time.Time // when that source was written

	Seen   bool // an interface has the address
	InUse  bool // it is Seen, or libcni's cache shows a container alive that has it
	IsOurs bool // leasehold has written the hold to the address's file
	// FormerInFile reports whether host-local's file of the address names a container that had the
	// address before the lease's. The file has to be written again, so that it is not taken for an
	// address that host-local has assigned since.
	FormerInFile bool
}
