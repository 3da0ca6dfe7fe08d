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
	forever    = "forever"
)

// maxMarker is more than any marker has: a pod's names, a UID, two interface
// names and two numbers.
const maxMarker = 1024

// Marker is what host-local's file says of a held address, so that host-local
// leaves the address alone and a lost store can be rebuilt (DESIGN section 4,
// Mirror):
//
//	#held db/db-0 eth0 firm 3600 1795226400 0f7d...-uid\r\neth0
//
// These are the pod, the interface, the strength, the window and the end of
// the hold (whole seconds, rounded up, or "forever"; the end in wall time) and
// the UID. "-" stands for what the lease does not have: a lease without a key
// names no pod. The second line is where host-local has the interface.
func Marker(l lease.Lease, now lease.Instant) string {
	pod, uid := none, none
	if !l.Key().IsZero() && isPod(l.Namespace, l.Name) {
		pod = l.Namespace + "/" + l.Name
		if isUID(l.UID) {
			uid = l.UID
		}
	}
	ifName := none
	if isIfName(l.Holder.IfName) {
		ifName = l.Holder.IfName
	}
	strength := soft
	if l.Firm {
		strength = firm
	}
	line := []string{markerWord, pod, ifName, strength, seconds(l.Window), until(l, now), uid}
	return strings.Join(line, " ") + lineBreak + ifName
}

func seconds(d time.Duration) string {
	if d == lease.Forever {
		return forever
	}
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}

func until(l lease.Lease, now lease.Instant) string {
	if l.Remaining(now) == lease.Forever {
		return forever
	}
	end := l.Until(now)
	n := end.Unix()
	if end.Nanosecond() > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}

// IsMarker tells whether the content of one of host-local's files was written
// by us, for a hold; whether it can be read is another matter.
func IsMarker(content string) bool { return strings.HasPrefix(content, markerWord+" ") }

// ParseMarker reads a marker. What it cannot read in full is no marker: then
// the address is merely in use.
func ParseMarker(content string) (Claim, bool) {
	var c Claim
	line, ifName, found := strings.Cut(content, lineBreak)
	words := strings.Split(line, " ")
	if len(content) > maxMarker || !found || len(words) != 7 || words[0] != markerWord || words[2] != ifName {
		return c, false
	}
	c = Claim{Kind: HeldMarker, Released: true, Firm: words[3] == firm, WindowKnown: true}
	ok := c.setPod(words[1], words[6]) && c.setIfName(ifName) && (c.Firm || words[3] == soft)
	var okWindow, okUntil bool
	c.Window, okWindow = parseSeconds(words[4])
	c.Until, okUntil = parseUntil(words[5])
	ok = ok && okWindow && okUntil
	if c.Firm && (c.Name == "" || c.Window == 0) {
		ok = false // a firm hold is a window's, for a pod
	}
	if !ok {
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
	if s == forever {
		return lease.Forever, true
	}
	n, ok := parseNumber(s)
	return time.Duration(n) * time.Second, ok && n <= int64(policy.MaxWindow/time.Second)
}

// parseUntil: the end is the zero time where there is none.
func parseUntil(s string) (time.Time, bool) {
	if s == forever {
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
