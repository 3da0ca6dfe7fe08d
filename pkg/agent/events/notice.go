package events

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/utils/lru"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The reasons of the agent's Events.
const (
	AddressKept        = "AddressKept"        // the pod returned to its address, and how long it was away
	AddressChanged     = "AddressChanged"     // the pod has another address than before, and why
	InvalidReservation = "InvalidReservation" // the pod's annotation is not a window; the former one stays
	// A limit (maxWindow, maxHeldShare, or one of the namespace) cut what the pod asked for.
	ReservationLimited = "ReservationLimited"
	AddressPoolLow     = "AddressPoolLow" // with the pod's address, less than a tenth of the range set is left
	// The pod is away, and its address went to another pod because the range set was exhausted
	// (onExhaustion).
	HoldYielded = "HoldYielded"
)

// notice contains the content of an Event about a pod.
type notice struct {
	Namespace, Pod string
	UID            string // of the pod, as the runtime passes it to plugins
	Reason         string
	Warning        bool
	Text           string
	Time           time.Time
	Container      string
}

// reader converts journal entries to notices. It remembers the last addresses of attachments, of at
// most twice as many as the journal has entries: an agent that is started again reads no more.
type reader struct {
	former *lru.Cache // former by attachment, nil before the first Read
}

// attachment identifies an address of a pod. A pod has at most one address for each interface,
// network and IP family.
type attachment struct {
	namespace, pod, network, ifName string
	v6                              bool
}

// former is the last known address of an attachment.
type former struct {
	address netip.Addr
	lost    string // why the pod lost the address; "" if it was not lost
}

// Read converts journal entries to notices. The entries must be in the order of the journal.
// retained reports whether a pod on this node requests retention now. An entry yields a notice only
// if it has a window, if retained reports true for its pod, or if its reason is ReservationLimited
// or AddressPoolLow.
func (r *reader) Read(entries []store.Entry, retained func(namespace, name, uid string) bool) []notice {
	if r.former == nil {
		r.former = lru.New(2 * store.JournalSize)
	}
	var out []notice
	for _, e := range entries {
		if e.Name == "" {
			continue
		}
		n, ok := r.notice(e)
		isRetained := e.Window > 0 || n.Reason == ReservationLimited || n.Reason == AddressPoolLow
		if ok && (isRetained || retained(e.Namespace, e.Name, e.UID)) {
			out = join(out, n)
		}
	}
	return out
}

// notice records the entry in r.former and returns the notice about it. It reports false if no
// Event is made from the entry.
func (r *reader) notice(e store.Entry) (n notice, ok bool) {
	at := attachment{e.Namespace, e.Name, e.Network, e.IfName, e.Address.Is6()}
	was, known := r.formerOf(at)
	n = notice{Namespace: e.Namespace, Pod: e.Name, UID: e.UID, Time: e.Time, Container: e.Container}
	switch e.Event {
	case store.EventBound, store.EventImported:
		r.former.Add(at, former{address: e.Address})
		why := was.lost
		if e.Event == store.EventImported { // host-local has served it, if somebody has put that back for a while
			why = e.Reason
		}
		if !known || why == "" || was.address == e.Address {
			return n, false
		}
		n.Reason, n.Warning = AddressChanged, true
		n.Text = fmt.Sprintf("got %s instead of %s: %s", e.Address, was.address, why)
	case store.EventKept, store.EventTakenOver:
		r.former.Add(at, former{address: e.Address})
		n.Reason, n.Text = AddressKept, fmt.Sprintf("kept %s: %s", e.Address, keptText(e))
	case store.EventYielded:
		r.noteLoss(at, e)
		n.Reason, n.Warning = HoldYielded, true
		n.Text = fmt.Sprintf("%s is no longer held: %s", e.Address, lossText(e))
	case store.EventExpired, store.EventRevoked, store.EventSuperseded:
		r.noteLoss(at, e)
		return n, false
	case store.EventLimited:
		n.Reason, n.Warning, n.Text = ReservationLimited, true, fmt.Sprintf("%s: %s", e.Address, e.Reason)
	case store.EventPoolLow:
		n.Reason, n.Warning, n.Text = AddressPoolLow, true, fmt.Sprintf("network %s: %s", e.Network, e.Reason)
	default:
		return n, false
	}
	return n, true
}

func (r *reader) formerOf(at attachment) (former, bool) {
	value, known := r.former.Get(at)
	was, _ := value.(former)
	return was, known
}

// noteLoss records that a pod has lost the address of an entry. The end of a hold without a window,
// such as a cool-down, is not recorded as a loss. In that case noteLoss forgets the address, unless
// a loss was recorded before.
func (r *reader) noteLoss(at attachment, e store.Entry) {
	was, known := r.formerOf(at)
	switch {
	case known && was.address != e.Address: // the pod has another address by now
	case e.Window > 0:
		r.former.Add(at, former{e.Address, lossText(e)})
	case was.lost == "":
		r.former.Remove(at)
	}
}

// keptText returns why a pod has its former address.
func keptText(e store.Entry) string {
	if e.Event == store.EventTakenOver {
		return "taken over " + e.Reason
	}
	away, isReturn := strings.CutPrefix(e.Reason, "after ")
	switch {
	case !isReturn:
		return e.Reason
	case e.ReserveAs != "":
		return fmt.Sprintf("it was held for %s as %q", away, e.ReserveAs)
	}
	return "the pod was away for " + away
}

// lossText returns why a pod has lost its address.
func lossText(e store.Entry) string {
	switch {
	case e.Event == store.EventExpired:
		return "its window ended before the pod came back"
	case e.Event == store.EventYielded:
		return "the pool was exhausted, and the address went " + e.Reason
	}
	return e.Reason
}

// join appends a notice to out. If out contains a notice with the same reason about the same
// sandbox, join adds the text to that notice instead, so that a pod with an IPv4 and an IPv6
// address gets one Event.
func join(out []notice, n notice) []notice {
	for i := range out {
		o := &out[i]
		if o.UID == n.UID && o.Reason == n.Reason && o.Container == n.Container && o.Namespace == n.Namespace &&
			o.Pod == n.Pod {
			o.Text += "; " + n.Text
			return out
		}
	}
	return append(out, n)
}
