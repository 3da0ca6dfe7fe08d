package lease

import (
	"net/netip"
	"strings"
	"time"
)

// Forever is the window of a lease that no clock ends: only an operator, a
// limit, a yield or the agent does.
const Forever time.Duration = 1<<63 - 1

// Pool names one set of addresses on a node: host-local's dataDir and the CNI
// network name. Two networks over one dataDir are two pools, as they are two
// directories for host-local.
type Pool struct {
	DataDir string // absolute and clean
	Network string // a valid CNI network name
}

// Key is what retention is promised to: a pod's interface in a pool. It holds
// no UID, for a recreated pod has another one (docs/facts.md, "A recreated pod has another UID").
type Key struct {
	Pool      Pool
	Namespace string
	Name      string
	IfName    string
}

// IsZero reports whether the caller sent no pod name: it has no key and gets
// plain host-local behaviour.
func (k Key) IsZero() bool { return k.Namespace == "" && k.Name == "" }

// Netns identifies a network namespace within one boot: where the runtime
// mounted it, and the nsfs file that stood there. Ino is 0 where no living
// namespace was seen; then nothing about its life can ever be proven.
type Netns struct {
	Path string
	Dev  uint64
	Ino  uint64
}

// Same reports whether both are known and one namespace, under whatever path.
func (n Netns) Same(o Netns) bool { return n.Ino != 0 && n.Ino == o.Ino && n.Dev == o.Dev }

// Holder is who has an address: an attachment (CNI's container id and
// interface name, SPEC "attachment"), the namespace it lives in and the boot
// that this was in.
type Holder struct {
	ContainerID string
	IfName      string
	Netns       Netns
	BootID      string
}

// Is reports whether both name the same attachment. It is the fence of every
// release (I6).
func (h Holder) Is(o Holder) bool {
	return h.ContainerID != "" && h.ContainerID == o.ContainerID && h.IfName == o.IfName
}

// Name is the attachment in one word: "containerID@ifname". No container id has
// an @ in it (CNI SPEC), so the word can be read again.
func (h Holder) Name() string { return h.ContainerID + "@" + h.IfName }

// ParseHolder reads what Name says; false for a word that no attachment has.
func ParseHolder(name string) (Holder, bool) {
	containerID, ifName, found := strings.Cut(name, "@")
	ok := found && containerID != "" && ifName != "" && !strings.Contains(name, "/")
	if !ok {
		return Holder{}, false
	}
	return Holder{ContainerID: containerID, IfName: ifName}, true
}

// Liveness is what is known about a holder. Of the holder of a bound lease: whether its
// network namespace lives. Of the last holder of a held one, whose DEL was heard:
// Alive while the address is on an interface of its namespace, Dead where it is on
// none, or the namespace is no longer at its path. The zero value is Unknown, so that
// forgetting to look can never free an address.
type Liveness int

const (
	Unknown Liveness = iota
	Alive
	Dead
)

func (l Liveness) String() string { return [...]string{"unknown", "alive", "dead"}[l] }

// Instant is one reading of both clocks. Within a boot only Boot counts, for
// nothing can step it; across boots only Wall is left.
type Instant struct {
	Wall   time.Time
	Boot   time.Duration // CLOCK_BOOTTIME
	BootID string
}

// Since is the time that went by since then: never negative, whatever the wall
// clock did. Across boots it is 0 where a wall clock was not set then or is not now.
func (i Instant) Since(then Instant) time.Duration {
	switch {
	case i.BootID != "" && i.BootID == then.BootID:
		return max(i.Boot-then.Boot, 0)
	case !i.isSet() || !then.isSet():
		return 0
	}
	return max(i.Wall.Sub(then.Wall), 0)
}

// neverSet is a time that a wall clock shows only if nobody has set it since the
// machine started without one: this program is younger.
var neverSet = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// isSet reports whether the wall clock may have been right.
func (i Instant) isSet() bool { return !i.Wall.Before(neverSet) }

// IsAfter reports whether it is certain that the instant is later than the other: both
// are of one boot, whose clock tells.
func (i Instant) IsAfter(o Instant) bool {
	return i.BootID != "" && i.BootID == o.BootID && i.Boot > o.Boot
}

// IsZero reports whether the instant was never set.
func (i Instant) IsZero() bool { return i.Wall.IsZero() && i.Boot == 0 && i.BootID == "" }

// State is where a lease stands. None is the state of an address without one.
type State int

const (
	None State = iota
	Bound
	Held
)

func (s State) String() string { return [...]string{"None", "Bound", "Held"}[s] }

// Lease is the one record of an address. Its zero value is State None.
//
// Invariant, proven by Validate: a Bound or Held lease has an ID, a pool and
// an address; a Held one has ReleasedAt; a firm one has a key and a Hold.
type Lease struct {
	ID      string // 16 hex digits, made at none -> Bound, kept through claims
	Pool    Pool
	Address netip.Addr
	Set     string // pool.Set.ID of the range set it was taken from; "" where unknown
	State   State

	Namespace string // of the pod; empty for a caller without K8S_POD_* args
	Name      string
	UID       string
	Holder    Holder // the last one, while Held
	MAC       string // of its interface; stays with the lease for the pod's next life; "" where unknown

	Window    time.Duration // what a release promises: 0 nothing, or up to Forever
	MaxWindow time.Duration // the longest one that its configuration grants; 0 = no limit
	Soft      time.Duration // how long the hold lasts where Window promises nothing
	HeldLimit int           // firm holds that its range set may have; 0 = no limit, NoneHeld = none
	BoundAt   Instant
	Owner     string // who makes the pod again, as the agent saw it; "" where unknown

	Firm       bool // Held: for the key, against everybody; else soft
	ReleasedAt Instant
	Hold       time.Duration // Held: its length, counted from ReleasedAt

	Superseded bool    // the key belongs to a newer set: its release promises nothing
	RefusedAt  Instant // Bound or Held: since when RefusedFor has been sent away
	RefusedFor string  // UID of that newcomer; "" where its runtime passes none

	Extra []byte // fields of a newer format, kept as they are
}

// NoneHeld is the HeldLimit of a range set that keeps nothing for anybody.
const NoneHeld = -1

// Granted is how much of a window the lease's configuration grants.
func (l Lease) Granted(w time.Duration) time.Duration {
	switch {
	case l.HeldLimit == NoneHeld:
		return 0
	case l.MaxWindow > 0:
		return min(w, l.MaxWindow)
	}
	return w
}

// Key is the lease's key; zero for a caller without a pod name and for a
// lease that lost its key to a newer set.
func (l Lease) Key() Key {
	if l.Superseded || (l.Namespace == "" && l.Name == "") {
		return Key{}
	}
	return Key{Pool: l.Pool, Namespace: l.Namespace, Name: l.Name, IfName: l.Holder.IfName}
}

// Remaining is how much of a hold is left: Forever, or 0 to Hold whatever the
// wall clock did between boots.
func (l Lease) Remaining(now Instant) time.Duration {
	if l.State != Held {
		return 0
	}
	if l.Hold == Forever {
		return Forever
	}
	return max(l.Hold-now.Since(l.ReleasedAt), 0)
}

// Lapsed reports whether the hold is over. Its last holder may still be alive.
func (l Lease) Lapsed(now Instant) bool { return l.State == Held && l.Remaining(now) == 0 }

// Until is when the hold ends, in today's wall clock; the zero time for one
// that never does.
func (l Lease) Until(now Instant) time.Time {
	rest := l.Remaining(now)
	if l.State != Held || rest == Forever {
		return time.Time{}
	}
	return now.Wall.Add(rest)
}
