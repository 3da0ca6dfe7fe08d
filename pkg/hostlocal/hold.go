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
	h := Hold{IfName: l.Holder.IfName, IsHold: l.IsHold, Window: l.Window, Until: l.Until(now)}
	if !l.Key().IsZero() {
		h.Namespace, h.Name, h.UID, h.ReserveAs = l.Namespace, l.Name, l.UID, l.ReserveAs
	}
	return h.content()
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

// content returns the content of the file, without names that are not valid.
func (h Hold) content() string {
	pod, ifName, kind, until, uid, named := none, none, coolDown, lease.Forever, none, ""
	if IsPod(h.Namespace, h.Name) {
		pod = h.Namespace + "/" + h.Name
		if IsUID(h.UID) {
			uid = h.UID
		}
		if lease.IsReserveAs(h.ReserveAs) {
			named = " " + h.ReserveAs
		}
	}
	if IsIfName(h.IfName) {
		ifName = h.IfName
	}
	if h.IsHold {
		kind = hold
	}
	if !h.Until.IsZero() {
		until = lease.Window(h.Until.UnixNano())
	}
	line := strings.Join([]string{holdWord, pod, ifName, kind, seconds(h.Window), seconds(until), uid}, " ")
	return line + named + lineBreak + ifName
}

// ParseHold parses the content of the file of a held address. It reports false if the content is
// incomplete or not as formatHold writes it. The caller then knows only that the address is in use.
func ParseHold(content string) (Hold, bool) {
	line, _, whole := strings.Cut(content, lineBreak) // torn without one, and its last word may be cut
	words := strings.Split(line, " ")
	if !whole || len(content) > maxHold || len(words) < 7 {
		return Hold{}, false
	}
	for i, word := range words {
		if word == none {
			words[i] = ""
		}
	}
	h := Hold{IfName: words[2], IsHold: words[3] == hold, Window: parseSeconds(words[4]), UID: words[6],
		ReserveAs: strings.Join(words[7:], " ")}
	h.Namespace, h.Name, _ = strings.Cut(words[1], "/")
	until := parseSeconds(words[5])
	if until < lease.Forever {
		h.Until = time.Unix(0, int64(until)).UTC()
	}
	isHold := h.Name != "" && h.Window > 0 // it is for a pod, and for a window
	return h, strings.HasPrefix(h.content(), line+lineBreak) && until > 0 && (isHold || !h.IsHold) &&
		(h.Window <= policy.MaxWindow || h.Window == lease.Forever)
}

// roundUp makes the seconds of a time those that it is rounded up to.
const roundUp = time.Second - 1

func seconds(w lease.Window) string {
	if w == lease.Forever {
		return w.String()
	}
	return strconv.FormatInt(int64((time.Duration(w)+roundUp)/time.Second), 10)
}

// parseSeconds parses what seconds returns. The result for another text is another time.
func parseSeconds(s string) lease.Window {
	if s == lease.Forever.String() {
		return lease.Forever
	}
	n, _ := strconv.ParseInt(s, 10, 64)
	return lease.Window(time.Duration(n) * time.Second)
}
