// Package events reports to the users of pods what happened to their addresses, as Events made from
// the store's journal. The name of an Event is derived from what it reports, so that an entry that
// is read again, after a restart, creates no second one.
package events

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The reasons of the agent's Events.
const (
	AddressKept        = "AddressKept"
	AddressChanged     = "AddressChanged"
	InvalidReservation = "InvalidReservation"
	ReservationLimited = "ReservationLimited"
	AddressPoolLow     = "AddressPoolLow"
	HoldYielded        = "HoldYielded"
	HoldEnding         = "HoldEnding"
)

// notice describes an Event to create.
type notice struct {
	Namespace, Pod string
	UID            string // of the pod, as the runtime passes it
	Reason         string
	Warning        bool
	Text           string
	Time           time.Time
	Subject        string // distinguishes notices of one pod and reason: the container, or the invalid value
}

// reader converts journal entries to notices. It remembers the last address of each pod.
type reader struct{ former map[attachment]former }

// attachment identifies the one address of a pod on an interface and network, per IP family.
type attachment struct {
	namespace, pod, network, ifName string
	v6                              bool
}

type former struct {
	address netip.Addr
	lost    string // why the pod lost the address; "" while it has or may get it again
}

// Read converts journal entries, in their order. retained reports whether a pod asks for a window.
// Entries about pods that do not ask for one yield no notices, except for reservations that
// existed.
func (r *reader) Read(entries []store.Entry, retained func(namespace, name, uid string) bool) []notice {
	if r.former == nil {
		r.former = map[attachment]former{}
	}
	for at := range r.former {
		if len(r.former) <= 2*store.JournalSize {
			break
		}
		delete(r.former, at) // any entry: all that is lost is the reason in the text of a later Event
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

func (r *reader) notice(e store.Entry) (n notice, ok bool) {
	at := attachment{e.Namespace, e.Name, e.Network, e.IfName, e.Address.Is6()}
	was, known := r.former[at]
	n = notice{Namespace: e.Namespace, Pod: e.Name, UID: e.UID, Time: e.Time, Subject: e.Container}
	switch e.Event {
	case store.EventBound:
		r.former[at] = former{address: e.Address}
		if !known || was.lost == "" || was.address == e.Address {
			return n, false
		}
		n.Reason, n.Warning = AddressChanged, true
		n.Text = fmt.Sprintf("got %s instead of %s: %s", e.Address, was.address, was.lost)
	case store.EventKept, store.EventTakenOver:
		r.former[at] = former{address: e.Address}
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

// noteLoss records that a pod has lost an address. The end of a hold without a window, such as a
// cool-down, is not worth an Event, unless the pod lost a retained address before.
func (r *reader) noteLoss(at attachment, e store.Entry) {
	was, known := r.former[at]
	switch {
	case known && was.address != e.Address: // it has another by now
	case e.Window > 0:
		r.former[at] = former{e.Address, lossText(e)}
	case was.lost == "":
		delete(r.former, at)
	}
}

func keptText(e store.Entry) string {
	if e.Event == store.EventTakenOver {
		return "taken over " + e.Reason
	}
	if away, ok := strings.CutPrefix(e.Reason, "after "); ok {
		return "the pod was away for " + away
	}
	return e.Reason
}

func lossText(e store.Entry) string {
	switch {
	case e.Event == store.EventExpired:
		return "its window ended before the pod came back"
	case e.Event == store.EventYielded:
		return "the pool was exhausted, and the address went " + e.Reason
	}
	return e.Reason
}

// join appends a notice, or adds its text to one about the other address of the same sandbox.
func join(out []notice, n notice) []notice {
	for i := range out {
		o := &out[i]
		if o.UID == n.UID && o.Reason == n.Reason && o.Subject == n.Subject && o.Namespace == n.Namespace &&
			o.Pod == n.Pod {
			o.Text += "; " + n.Text
			return out
		}
	}
	return append(out, n)
}
