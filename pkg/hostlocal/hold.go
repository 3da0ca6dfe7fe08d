package hostlocal

import (
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	holdWord = "#held" // no container id begins like that (CNI SPEC), so host-local never releases it
	none     = "-"
	hold     = "hold"
	coolDown = "cool-down"
)

// maxHold is more than the size in bytes of any Hold: a pod's names, a UID, two interface names and
// two numbers, and a reservation name.
const maxHold = 1024

// formatHold returns the content of host-local's file for a held address. The first line is where
// host-local expects the container id:
//
//	#held db/db-0 eth0 hold 3600 1795226400 5f1c9a02-uid\r\neth0
//
// After the word "#held" come the pod, the interface, "hold" or "cool-down", the window, the end of
// the hold and the UID. The window is in seconds, the end is a Unix time, both rounded up, and both
// may be "forever". "-" means that the lease does not have the value. A lease without a key has no
// pod. If the lease is named, its reservation name follows.
func formatHold(l lease.Lease, now lease.Instant) string {
	pod, uid, ifName, kind, reserveAs := none, none, none, coolDown, ""
	if !l.Key().IsZero() && IsPod(l.Namespace, l.Name) {
		pod, reserveAs = l.Namespace+"/"+l.Name, l.ReserveAs
		if IsUID(l.UID) {
			uid = l.UID
		}
	}
	if IsIfName(l.Holder.IfName) {
		ifName = l.Holder.IfName
	}
	if l.IsHold {
		kind = hold
	}
	line := []string{holdWord, pod, ifName, kind, seconds(l.Window), until(l, now), uid}
	if reserveAs != "" {
		line = append(line, reserveAs)
	}
	return strings.Join(line, " ") + lineBreak + ifName
}

// roundUp makes the seconds of a time those that it is rounded up to.
const roundUp = time.Second - 1

func seconds(w lease.Window) string {
	if w == lease.Forever {
		return w.String()
	}
	return strconv.FormatInt(int64((time.Duration(w)+roundUp)/time.Second), 10)
}

func until(l lease.Lease, now lease.Instant) string {
	if l.Remaining(now) == lease.Forever {
		return lease.Forever.String()
	}
	return strconv.FormatInt(l.Until(now).Add(roundUp).Unix(), 10)
}

// IsHold reports whether the content of a file is a Hold. The rest of it may be damaged, see
// ParseHold.
func IsHold(content string) bool { return strings.HasPrefix(content, holdWord+" ") }

// Hold is the content of the file of a held address.
type Hold struct {
	Namespace, Name, UID, IfName string // of the pod; "" if the lease has no key
	ReserveAs                    string // "" if the lease is not named

	IsHold bool
	Window lease.Window
	Until  time.Time // zero if it does not end
}

// ParseHold parses the content of the file of a held address. It reports false if the content is
// incomplete or invalid. The caller then knows only that the address is in use.
func ParseHold(content string) (Hold, bool) {
	line, _, whole := strings.Cut(content, lineBreak) // torn without one, and its last word may be cut
	words := strings.Split(line, " ")
	if !whole || len(content) > maxHold || len(words) < 7 || len(words) > 8 || words[0] != holdWord {
		return Hold{}, false
	}
	h := Hold{IsHold: words[3] == hold}
	if len(words) == 8 {
		if h.ReserveAs = words[7]; !lease.IsReserveAs(h.ReserveAs) || words[1] == none {
			return Hold{}, false
		}
	}
	var okWindow, okUntil bool
	h.Window, okWindow = parseSeconds(words[4])
	h.Until, okUntil = parseUntil(words[5])
	ok := okWindow && okUntil && h.setPod(words[1], words[6]) && h.setIfName(words[2]) &&
		(h.IsHold || words[3] == coolDown)
	if !ok || h.IsHold && (h.Name == "" || h.Window == 0) { // it is for a pod, and for a window
		return Hold{}, false
	}
	return h, true
}

func (h *Hold) setPod(pod, uid string) bool {
	if uid != none {
		if !IsUID(uid) || pod == none {
			return false
		}
		h.UID = uid
	}
	if pod == none {
		return true
	}
	var found bool
	h.Namespace, h.Name, found = strings.Cut(pod, "/")
	return found && IsPod(h.Namespace, h.Name)
}

func (h *Hold) setIfName(s string) bool {
	if s == none {
		return true
	}
	h.IfName = s
	return IsIfName(s)
}

func parseSeconds(s string) (lease.Window, bool) {
	if s == lease.Forever.String() {
		return lease.Forever, true
	}
	n, ok := parseNumber(s)
	w := lease.Window(time.Duration(n) * time.Second)
	return w, ok && n <= int64(time.Duration(policy.MaxWindow)/time.Second)
}

// parseUntil parses the end of a hold. It returns the zero time for "forever".
func parseUntil(s string) (time.Time, bool) {
	if s == lease.Forever.String() {
		return time.Time{}, true
	}
	n, ok := parseNumber(s)
	return time.Unix(n, 0).UTC(), ok && n > 0
}

// parseNumber parses a number that was written by this package: without a sign or leading zeros.
func parseNumber(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}
