// Package events tells the users of pods what became of their addresses: as Events, made from the store's journal
// (NAMES, events). Each has a name that follows from what happened, so that none is told twice, whatever restarts.
package events

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The reasons of NAMES that are this node's to tell.
const (
	AddressKept        = "AddressKept"
	AddressChanged     = "AddressChanged"
	InvalidReservation = "InvalidReservation"
	ReservationLimited = "ReservationLimited"
	AddressPoolLow     = "AddressPoolLow"
)

// Notice is one event to be.
type Notice struct {
	Namespace, Pod string
	UID            string // as the runtime passes it
	Reason         string
	Warning        bool
	Text           string
	Time           time.Time
	About          string // what makes it one of its kind: the container, or the word that is wrong
}

// Reader makes notices of journal entries. It remembers where each pod's addresses went.
type Reader struct{ former map[place]former }

// place is where a pod has one address.
type place struct {
	namespace, pod, network, ifName string
	v6                              bool
}

type former struct {
	address netip.Addr
	why     string // it lost it; "" while it may come back
}

// Read takes the entries of the journal in their order; retained tells whether a pod, by namespace, name and UID, asks
// for a window.
func (r *Reader) Read(entries []store.Entry, retained func(namespace, name, uid string) bool) []Notice {
	if r.former == nil {
		r.former = map[place]former{}
	}
	for at := range r.former {
		if len(r.former) <= 2*store.JournalSize {
			break
		}
		delete(r.former, at) // anyone: what is lost is the reason in a text
	}
	var out []Notice
	for _, e := range entries {
		if e.Name == "" {
			continue
		}
		n, ok := r.one(e)
		isPromised := e.Window > 0 || n.Reason == ReservationLimited || n.Reason == AddressPoolLow
		if ok && (isPromised || retained(e.Namespace, e.Name, e.UID)) {
			out = join(out, n)
		}
	}
	return out
}

func (r *Reader) one(e store.Entry) (n Notice, ok bool) {
	at := place{e.Namespace, e.Name, e.Network, e.IfName, e.Address.Is6()}
	was, known := r.former[at]
	n = Notice{Namespace: e.Namespace, Pod: e.Name, UID: e.UID, Time: e.Time, About: e.Container}
	switch e.Event {
	case store.EventBound:
		r.former[at] = former{address: e.Address}
		if !known || was.why == "" || was.address == e.Address {
			return n, false
		}
		n.Reason, n.Warning = AddressChanged, true
		n.Text = fmt.Sprintf("%s instead of %s: %s", e.Address, was.address, was.why)
	case store.EventKept, store.EventTakenOver:
		r.former[at] = former{address: e.Address}
		n.Reason, n.Text = AddressKept, fmt.Sprintf("%s: %s", e.Address, keptText(e.Reason))
	case store.EventExpired, store.EventYielded, store.EventDropped, store.EventSuperseded:
		r.lost(at, e)
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

// lost notes that a pod has lost an address. Where nothing was promised of it, as after a cool-down, its next one is no
// news; unless a promise was broken before.
func (r *Reader) lost(at place, e store.Entry) {
	was, known := r.former[at]
	switch {
	case known && was.address != e.Address: // it has another by now
	case e.Window > 0:
		r.former[at] = former{e.Address, lossText(e)}
	case was.why == "":
		delete(r.former, at)
	}
}

func keptText(reason string) string {
	if away, ok := strings.CutPrefix(reason, "after "); ok {
		return "the pod was away for " + away
	}
	return reason
}

func lossText(e store.Entry) string {
	switch {
	case e.Event == store.EventExpired:
		return "its window ended before the pod came back"
	case e.Event == store.EventYielded:
		return "the pool was exhausted, and it went " + e.Reason
	}
	return e.Reason
}

// join makes one notice of those about the two addresses of one sandbox.
func join(out []Notice, n Notice) []Notice {
	for i := range out {
		o := &out[i]
		if o.UID == n.UID && o.Reason == n.Reason && o.About == n.About && o.Namespace == n.Namespace && o.Pod == n.Pod {
			o.Text += "; " + n.Text
			return out
		}
	}
	return append(out, n)
}
