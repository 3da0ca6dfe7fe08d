package hostlocal

import (
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/names"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	holdWord = "#held" // no container id begins like that (CNI SPEC), so host-local never releases it
	none     = "-"
	firm     = "firm"
	soft     = "soft"
)

// maxHold is more than any marker has: a pod's names, a UID, two interface
// names and two numbers.
const maxHold = 1024

// formatHold returns the content of host-local's file for a held address: host-local leaves the
// address alone, and a lost store can be rebuilt (docs/design.md, "host-local's files are kept in
// step"). Its first line stands where the container id does otherwise:
//
//	#held db/db-0 eth0 firm 3600 1795226400 5f1c9a02-uid\r\neth0
//
// The words are the pod, the interface, the strength, the window and the end
// of the hold (whole seconds, rounded up, or "forever"; the end by the wall
// clock) and the UID. "-" stands for what the lease does not have; one without
// a key names no pod.
func formatHold(l lease.Lease, now lease.Instant) string {
	pod, uid, ifName, strength := none, none, none, soft
	if !l.Key().IsZero() && names.IsPod(l.Namespace, l.Name) {
		pod = l.Namespace + "/" + l.Name
		if names.IsUID(l.UID) {
			uid = l.UID
		}
	}
	if names.IsIfName(l.Holder.IfName) {
		ifName = l.Holder.IfName
	}
	if l.Firm {
		strength = firm
	}
	line := []string{holdWord, pod, ifName, strength, seconds(l.Window), until(l, now), uid}
	return strings.Join(line, " ") + lineBreak + ifName
}

func seconds(d time.Duration) string {
	if d == lease.Forever {
		return lease.ForeverWord
	}
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}

func until(l lease.Lease, now lease.Instant) string {
	if l.Remaining(now) == lease.Forever {
		return lease.ForeverWord
	}
	end := l.Until(now)
	n := end.Unix()
	if end.Nanosecond() > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}

// IsHold reports whether we wrote the content of one of host-local's files, for
// a hold; whether all of it can still be read is another matter.
func IsHold(content string) bool { return strings.HasPrefix(content, holdWord+" ") }

// Hold is what the file of a held address says: for which pod's interface the address is held, all
// of them "" if it is held for nobody, and until when.
type Hold struct {
	Namespace, Name, UID, IfName string

	Firm   bool
	Window time.Duration
	Until  time.Time // zero if it does not end
}

// ParseHold reads the content of host-local's file for a held address. It reports false if it
// cannot read all of it: then the address is merely in use.
func ParseHold(content string) (Hold, bool) {
	line, _, whole := strings.Cut(content, lineBreak) // torn without one, and its last word may be cut
	words := strings.Split(line, " ")
	if !whole || len(content) > maxHold || len(words) != 7 || words[0] != holdWord {
		return Hold{}, false
	}
	h := Hold{Firm: words[3] == firm}
	var okWindow, okUntil bool
	h.Window, okWindow = parseSeconds(words[4])
	h.Until, okUntil = parseUntil(words[5])
	ok := okWindow && okUntil && h.setPod(words[1], words[6]) && h.setIfName(words[2]) && (h.Firm || words[3] == soft)
	if !ok || h.Firm && (h.Name == "" || h.Window == 0) { // a firm hold is a window's, for a pod
		return Hold{}, false
	}
	return h, true
}

func (h *Hold) setPod(pod, uid string) bool {
	if uid != none {
		if !names.IsUID(uid) || pod == none {
			return false
		}
		h.UID = uid
	}
	if pod == none {
		return true
	}
	var found bool
	h.Namespace, h.Name, found = strings.Cut(pod, "/")
	return found && names.IsPod(h.Namespace, h.Name)
}

func (h *Hold) setIfName(s string) bool {
	if s == none {
		return true
	}
	h.IfName = s
	return names.IsIfName(s)
}

func parseSeconds(s string) (time.Duration, bool) {
	if s == lease.ForeverWord {
		return lease.Forever, true
	}
	n, ok := parseNumber(s)
	return time.Duration(n) * time.Second, ok && n <= int64(policy.MaxWindow/time.Second)
}

// parseUntil: the end is the zero time where there is none.
func parseUntil(s string) (time.Time, bool) {
	if s == lease.ForeverWord {
		return time.Time{}, true
	}
	n, ok := parseNumber(s)
	return time.Unix(n, 0).UTC(), ok && n > 0
}

// parseNumber accepts the one way in which we write a number.
func parseNumber(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}
