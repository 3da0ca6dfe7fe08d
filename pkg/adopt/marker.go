package adopt

import (
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	markerWord = "#held" // no container id begins like that (CNI SPEC), so host-local never releases it
	lineBreak  = "\r\n"  // host-local's, on every system
	none       = "-"
	firm       = "firm"
	soft       = "soft"
)

// maxMarker is more than any marker has: a pod's names, a UID, two interface
// names and two numbers.
const maxMarker = 1024

// Marker is the content of host-local's file for a held address: host-local
// leaves the address alone, and a lost store can be rebuilt (docs/design.md,
// Mirror). Its first line stands where the container id does otherwise:
//
//	#held db/db-0 eth0 firm 3600 1795226400 5f1c9a02-uid\r\neth0
//
// The words are the pod, the interface, the strength, the window and the end
// of the hold (whole seconds, rounded up, or "forever"; the end by the wall
// clock) and the UID. "-" stands for what the lease does not have; one without
// a key names no pod.
func Marker(l lease.Lease, now lease.Instant) string {
	pod, uid, ifName, strength := none, none, none, soft
	if !l.Key().IsZero() && isPod(l.Namespace, l.Name) {
		pod = l.Namespace + "/" + l.Name
		if isUID(l.UID) {
			uid = l.UID
		}
	}
	if isIfName(l.Holder.IfName) {
		ifName = l.Holder.IfName
	}
	if l.Firm {
		strength = firm
	}
	line := []string{markerWord, pod, ifName, strength, seconds(l.Window), until(l, now), uid}
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

// IsMarker reports whether we wrote the content of one of host-local's files, for
// a hold; whether all of it can still be read is another matter.
func IsMarker(content string) bool { return strings.HasPrefix(content, markerWord+" ") }

// ParseMarker reads the content of host-local's file for a held address. What
// it cannot read in full is no marker: then the address is merely in use.
func ParseMarker(content string) (Claim, bool) {
	line, _, whole := strings.Cut(content, lineBreak) // torn without one, and its last word may be cut
	words := strings.Split(line, " ")
	if !whole || len(content) > maxMarker || len(words) != 7 || words[0] != markerWord {
		return Claim{}, false
	}
	c := Claim{Kind: HeldMarker, Released: true, Firm: words[3] == firm, WindowKnown: true}
	var okWindow, okUntil bool
	c.Window, okWindow = parseSeconds(words[4])
	c.Until, okUntil = parseUntil(words[5])
	ok := okWindow && okUntil && c.setPod(words[1], words[6]) && c.setIfName(words[2]) && (c.Firm || words[3] == soft)
	if !ok || c.Firm && (c.Name == "" || c.Window == 0) { // a firm hold is a window's, for a pod
		return Claim{}, false
	}
	return c, true
}

func (c *Claim) setPod(pod, uid string) bool {
	if uid != none {
		if !isUID(uid) || pod == none {
			return false
		}
		c.UID = uid
	}
	if pod == none {
		return true
	}
	var found bool
	c.Namespace, c.Name, found = strings.Cut(pod, "/")
	return found && isPod(c.Namespace, c.Name)
}

func (c *Claim) setIfName(s string) bool {
	if s == none {
		return true
	}
	c.IfName = s
	return isIfName(s)
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

// parseNumber accepts the one way in which Marker writes a number.
func parseNumber(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}
