package lease

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Window is how long an address is held: not at all (0), for a duration, or Forever.
type Window time.Duration

// Forever is a window that does not end by time: only an operator, a limit, a yield or the agent
// ends the hold.
const Forever Window = 1<<63 - 1

// String returns a Go duration such as "1h30m0s", or "forever".
func (w Window) String() string {
	if w == Forever {
		return "forever"
	}
	return time.Duration(w).String()
}

// Round rounds the window to a multiple of a duration, as time.Duration.Round does. Forever does
// not change.
func (w Window) Round(to time.Duration) Window {
	if w == Forever {
		return w
	}
	return Window(time.Duration(w).Round(to))
}

// Pool identifies the addresses of one network on a node, by host-local's dataDir and the name of
// the CNI network. Two networks with the same dataDir are two pools, as they are two directories
// for host-local.
type Pool struct {
	DataDir string // absolute and canonical
	Network string // a valid CNI network name
}

// Key identifies the pod interface that an address is retained for. It has no UID, because a
// recreated pod has another one (docs/facts.md, "A recreated pod has another UID").
//
// The key of a named lease has the reservation name in place of the pod's name, so that it never
// equals the key of a pod. Several leases may have it, each for another pod.
type Key struct {
	Pool      Pool
	Namespace string
	Name      string // of the pod; "" if ReserveAs is set
	ReserveAs string
	IfName    string
}

// IsZero reports whether there is no key, because the runtime passed no pod name. Addresses without
// a key are assigned and released as by host-local.
func (k Key) IsZero() bool { return k.Namespace == "" && k.Name == "" }

// Netns identifies a network namespace within one boot: the path at which the runtime mounted it,
// and the device and inode of the nsfs file there. Ino is 0 if no namespace was found at the path;
// then nothing can be proven about it.
type Netns struct {
	Path string
	Dev  uint64
	Ino  uint64
}

// Same reports whether both are known and are the same namespace, at whatever path.
func (n Netns) Same(o Netns) bool { return n.Ino != 0 && n.Ino == o.Ino && n.Dev == o.Dev }

// Holder is the container interface that has an address: the attachment (the container id and
// interface name of the CNI specification), its network namespace, and the boot in which the
// address was bound.
type Holder struct {
	ContainerID string
	IfName      string
	Netns       Netns
	BootID      string
}

// Is reports whether both are the same attachment. A release has an effect only if Is reports true
// for the lease's holder and the holder that the release names.
func (h Holder) Is(o Holder) bool {
	return h.ContainerID != "" && h.ContainerID == o.ContainerID && h.IfName == o.IfName
}

// Attachment returns the attachment of the holder.
func (h Holder) Attachment() Attachment { return Attachment{h.ContainerID, h.IfName} }

// Attachment is CNI's identity of a container's interface in a network.
type Attachment struct {
	ContainerID string
	IfName      string
}

// Name returns the attachment as "containerID@ifname". The CNI specification allows no @ in a
// container id, so ParseAttachment can read it.
func (a Attachment) Name() string { return a.ContainerID + "@" + a.IfName }

// ParseAttachment parses what Name returns, and reports whether it is valid.
func ParseAttachment(name string) (a Attachment, ok bool) {
	a.ContainerID, a.IfName, ok = strings.Cut(name, "@")
	if !ok || a.ContainerID == "" || a.IfName == "" || strings.Contains(name, "/") {
		return Attachment{}, false
	}
	return a, true
}

// Place is an address of a pool.
type Place struct {
	Pool    Pool
	Address netip.Addr
}

// Place returns where the lease is.
func (l Lease) Place() Place { return Place{l.Pool, l.Address} }

// Liveness is what is known about the holder of a lease. The zero value is Unknown, so that a
// missing check never frees an address.
//
// The holder of a bound lease is Alive if its network namespace exists, and Dead if it is proven
// that the namespace does not. The last holder of a held lease is Alive while an interface in its
// namespace has the address, and Dead if none has it or if the namespace is no longer at its path.
type Liveness int

const (
	Unknown Liveness = iota
	Alive
	Dead
)

func (l Liveness) String() string { return [...]string{"unknown", "alive", "dead"}[l] }

// Instant is a reading of both clocks. Within one boot only Boot is compared, because it cannot be
// stepped; across boots only Wall is.
type Instant struct {
	Wall   time.Time
	Boot   time.Duration // CLOCK_BOOTTIME
	BootID string
}

// Since returns the time that passed since then. It is never negative. It is 0 if the instants are
// of different boots and the wall clock was not set at one of them.
func (i Instant) Since(then Instant) time.Duration {
	switch {
	case i.BootID != "" && i.BootID == then.BootID:
		return max(i.Boot-then.Boot, 0)
	case !i.IsSet() || !then.IsSet():
		return 0
	}
	return max(i.Wall.Sub(then.Wall), 0)
}

// neverSet is a time before this program was written. A wall clock that shows an earlier time was
// not set: a machine without a battery-backed clock starts in 1970.
var neverSet = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// IsSet reports whether the wall clock may be right.
func (i Instant) IsSet() bool { return !i.Wall.Before(neverSet) }

// IsAfter reports whether the instant is certainly later than o: both are of one boot, and Boot is
// later.
func (i Instant) IsAfter(o Instant) bool {
	return i.BootID != "" && i.BootID == o.BootID && i.Boot > o.Boot
}

// IsZero reports whether the instant was never set.
func (i Instant) IsZero() bool { return i.Wall.IsZero() && i.Boot == 0 && i.BootID == "" }

// State is the state of a lease. None is the state of an address without a lease.
type State int

const (
	None State = iota
	Bound
	Held
)

func (s State) String() string { return [...]string{"None", "Bound", "Held"}[s] }

// Lease is the record of one address. Its zero value has State None.
//
// Validate checks the invariants: a Bound or Held lease has an ID, a pool and an address; a Held
// lease has ReleasedAt; a hold has a key and a Hold.
type Lease struct {
	ID      string // 16 hex digits; made when the address is bound, kept when it is claimed
	Pool    Pool
	Address netip.Addr
	Set     string // pool.Set.ID of the range set that it was taken from; "" if unknown
	State   State

	Namespace string // of the pod; "" for a caller without K8S_POD_* arguments
	Name      string
	UID       string
	// NamespaceUID is the UID of the pod's namespace, as the agent saw it. It is "" if unknown, and
	// for a lease without a window.
	NamespaceUID string
	// ReserveAs is the reservation name that the address is kept for, in place of the pod's name:
	// the lease is named. It is "" for all other leases.
	ReserveAs string
	Holder    Holder // the last holder, if Held
	MAC       string // of the holder's interface, kept for the recreated pod; "" if unknown

	Window    Window        // the length of the hold after a release: 0 for none, or up to Forever
	MaxWindow Window        // the longest Window that the configuration allows; 0 = no limit
	CoolDown  time.Duration // the length of the cool-down after a release without Window
	HeldLimit int           // the number of holds that the range set may have; 0 = no limit, NoneHeld = none
	BoundAt   Instant
	Owner     string // the controller that recreates the pod, as the agent saw it; "" if unknown

	Leaving bool // Bound and named: the pod is being deleted, so that a new pod of the name waits for the address

	IsHold     bool // Held: it is a hold; otherwise a cool-down
	ReleasedAt Instant
	Hold       Window // Held: the length of the hold, counted from ReleasedAt

	Superseded bool    // the key has another address now; a release starts no hold
	RefusedAt  Instant // when an ADD of the pod RefusedFor was first rejected (Refuse)
	RefusedFor string  // UID of the rejected pod; "" if its runtime passes none

	Extra []byte // fields of a newer format, kept unchanged
}

// NoneHeld is the HeldLimit of a range set that allows no holds.
const NoneHeld = -1

// granted returns the window w, limited by what the configuration allows for the lease.
func (l Lease) granted(w Window) Window {
	switch {
	case l.HeldLimit == NoneHeld:
		return 0
	case l.MaxWindow > 0:
		return min(w, l.MaxWindow)
	}
	return w
}

// Key returns the key under which the pod of the lease finds its address again. It is zero if the
// lease was not made for a pod, and if the lease is superseded, because its key then belongs to
// another lease. If the pod has a reservation name, it is the key of the name.
func (l Lease) Key() Key {
	if l.Superseded || !l.HasPod() {
		return Key{}
	}
	k := Key{Pool: l.Pool, Namespace: l.Namespace, Name: l.Name, ReserveAs: l.ReserveAs, IfName: l.Holder.IfName}
	if k.ReserveAs != "" {
		k.Name = ""
	}
	return k
}

// HasPod reports whether the lease was made for a pod.
func (l Lease) HasPod() bool { return l.Namespace != "" || l.Name != "" }

// IsRetained reports whether the address is promised to the lease's key: it is bound with a window,
// or held.
func (l Lease) IsRetained() bool {
	return !l.Key().IsZero() && (l.State == Bound && l.Window > 0 || l.IsHold)
}

// Remaining returns how much of a hold is left. It is Forever, or from 0 to Hold, even if the wall
// clock was changed between boots.
func (l Lease) Remaining(now Instant) Window {
	if l.State != Held {
		return 0
	}
	if l.Hold == Forever {
		return Forever
	}
	return max(l.Hold-Window(now.Since(l.ReleasedAt)), 0)
}

// Lapsed reports whether the lease is a hold whose time is over. Its last holder may still be
// alive; Expire ends the hold.
func (l Lease) Lapsed(now Instant) bool { return l.State == Held && l.Remaining(now) == 0 }

// IsUnused reports whether the lease is a hold that Reserve made and that no pod has had.
func (l Lease) IsUnused() bool {
	return l.State == Held && l.IsHold && l.Holder.ContainerID == "" && l.UID == ""
}

// IsImported reports whether the lease was made of what the node shows. host-local may have given
// the container another address, of which there is no lease.
func (l Lease) IsImported() bool { return l.Set == "" }

// Until returns when the hold ends by the current wall clock, or the zero time if it never does.
func (l Lease) Until(now Instant) time.Time {
	rest := l.Remaining(now)
	if l.State != Held || rest == Forever {
		return time.Time{}
	}
	return now.Wall.Add(time.Duration(rest))
}

// Describe returns a text with the owner of a lease and its end, for users of a namespace, or of
// all namespaces if viewer is "". It names no pod and no container of another namespace.
func (l Lease) Describe(viewer string, now Instant) string {
	who := "container " + l.Holder.ContainerID
	switch {
	case l.Name == "" && l.Holder.ContainerID == "":
		who = "an unknown container"
	case l.Name == "":
	case viewer != "" && viewer != l.Namespace:
		who = "a pod of another namespace"
	case l.State == Held && l.ReserveAs != "":
		who = "reservation name " + l.Namespace + "/" + l.ReserveAs
	default:
		who = "pod " + l.Namespace + "/" + l.Name
	}
	if l.State == Bound {
		return "belongs to " + who
	}
	return fmt.Sprintf("is held for %s until %s", who, UntilText(l.Until(now)))
}

// UntilText returns a text with the end of a hold (Lease.Until).
func UntilText(t time.Time) string {
	if t.IsZero() {
		return "it is released by hand"
	}
	return t.UTC().Format(time.RFC3339)
}
