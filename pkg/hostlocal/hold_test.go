package hostlocal

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
)

var (
	testPool = lease.Pool{DataDir: "/var/lib/cni/networks", Network: "cbr0"}
	now      = lease.Instant{Wall: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), Boot: time.Hour, BootID: "boot-1"}
)

func TestHold(t *testing.T) {
	ofWindow := lease.Lease{
		ID: "00112233445566aa", Pool: testPool, Address: netip.MustParseAddr("10.0.0.5"), Set: "s", State: lease.Held,
		Namespace: "db", Name: "db-0", UID: "u1", Window: lease.Window(time.Hour), BoundAt: now,
		Holder: lease.Holder{ContainerID: "c1", IfName: "eth0"},
		IsHold: true, Hold: lease.Window(time.Hour), ReleasedAt: now,
	}
	with := func(change func(*lease.Lease)) lease.Lease { l := ofWindow; change(&l); return l }
	for _, tt := range []struct {
		name string
		held lease.Lease
		want string
	}{
		{"a hold", ofWindow, "#held db/db-0 eth0 hold 3600 1795258800 u1\r\neth0"},
		{"forever", with(func(l *lease.Lease) { l.Window, l.Hold = lease.Forever, lease.Forever }),
			"#held db/db-0 eth0 hold forever forever u1\r\neth0"},
		{"a cool-down", with(func(l *lease.Lease) {
			l.IsHold, l.Window, l.Hold = false, 0, lease.Window(1500*time.Millisecond)
		}),
			"#held db/db-0 eth0 cool-down 0 1795255202 u1\r\neth0"},
		{"a pod whose name is a subdomain", with(func(l *lease.Lease) { l.Name = "db.example-0" }),
			"#held db/db.example-0 eth0 hold 3600 1795258800 u1\r\neth0"},
		{"no UID", with(func(l *lease.Lease) { l.UID = "" }), "#held db/db-0 eth0 hold 3600 1795258800 -\r\neth0"},
		{"a reservation name", with(func(l *lease.Lease) { l.ReserveAs = "registry" }),
			"#held db/db-0 eth0 hold 3600 1795258800 u1 registry\r\neth0"},
		{"a reservation name, and no key", with(func(l *lease.Lease) {
			l.ReserveAs, l.Superseded, l.IsHold, l.Window = "registry", true, false, 0
		}),
			"#held - eth0 cool-down 0 1795258800 -\r\neth0"},
		{"no key", with(func(l *lease.Lease) { l.Superseded, l.IsHold, l.Window = true, false, 0 }),
			"#held - eth0 cool-down 0 1795258800 -\r\neth0"},
		{"nothing at all", with(func(l *lease.Lease) {
			l.Namespace, l.Name, l.UID, l.Holder.IfName, l.IsHold, l.Window = "", "", "", "", false, 0
		}),
			"#held - - cool-down 0 1795258800 -\r\n-"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := formatHold(tt.held, now)
			check.Equal(t, got, tt.want)
			h, ok := ParseHold(got)
			if !ok || !IsHold(got) {
				t.Fatal("it cannot be read")
			}
			l := tt.held
			want := Hold{IfName: l.Holder.IfName, IsHold: l.IsHold, Window: l.Window, Until: h.Until}
			if !l.Key().IsZero() {
				want.Namespace, want.Name, want.UID, want.ReserveAs = l.Namespace, l.Name, l.UID, l.ReserveAs
			}
			check.Equal(t, h, want)
			if until := l.Until(now); h.Until.IsZero() != until.IsZero() || h.Until.Sub(until).Abs() >= time.Second {
				t.Errorf("it ends at %s, want %s", h.Until, until)
			}
		})
	}
}

func TestParseHoldRejects(t *testing.T) {
	for _, content := range []string{
		"",
		"#held",
		"#held \r\neth0",
		"c1\r\neth0",
		"#held db/db-0 eth0 hold 3600 1795258800 u1",                // cut off: the UID may be
		"#held db/db-0 eth0 hold 3600 1795258800\r\neth0",           // no UID
		"#held db/db-0 eth0 hold 0 1795258800 u1\r\neth0",           // hold for no time
		"#held - eth0 hold 3600 1795258800 -\r\neth0",               // hold for nobody
		"#held - eth0 cool-down 3600 1795258800 u1\r\neth0",         // a UID of nobody
		"#held db/db-0 eth0 hard 3600 1795258800 u1\r\neth0",        // no strength
		"#held db/db-0 eth0 hold -1 1795258800 u1\r\neth0",          // no number
		"#held db/db-0 eth0 hold 03600 1795258800 u1\r\neth0",       // not as we write it
		"#held db/db-0 eth0 hold 3600 0 u1\r\neth0",                 // until 1970
		"#held db/db-0 eth0 hold 9999999999 1795258800 u1\r\n",      // beyond all windows
		"#held db/db-0 eth0 hold 3600 99999999999999999999 u1\r\n",  // beyond all clocks
		"#held db/db-0 eth0 hold 3600 1795258800 u1 \r\neth0",       // no name
		"#held db/db-0 eth0 hold 3600 1795258800 u1 a/b\r\neth0",    // no reservation name
		"#held db/db-0 eth0 hold 3600 1795258800 u1 a b\r\neth0",    // two
		"#held - eth0 cool-down 3600 1795258800 - registry\r\neth0", // a name of no pod
		"#held db/db-0 eth0 hold 3600 1795258800 u1 regist",         // cut off
		"#held db/DB eth0 hold 3600 1795258800 u1\r\neth0",
		"#held db/../x eth0 hold 3600 1795258800 u1\r\neth0",
		"#held db eth0 hold 3600 1795258800 u1\r\neth0",
		"#held db/db-0 eth/0 hold 3600 1795258800 u1\r\neth0",
		"#held db/db-0 eth0 hold 3600 1795258800 u\x1b[1m\r\neth0",
		"#held db/db-0 eth0 hold 3600 1795258800 u1\r\n" + strings.Repeat("x", maxHold),
	} {
		if c, ok := ParseHold(content); ok {
			t.Errorf("%q is %+v", content, c)
		}
	}
}

// A node whose clock starts in 1970 writes such an end.
func TestHoldThatEndsIn1970(t *testing.T) {
	h, ok := ParseHold("#held db/db-0 eth0 hold 3600 1 u1\r\neth0")
	if want := time.Unix(1, 0); !ok || !h.Until.Equal(want) {
		t.Errorf("%+v, %t; want until %s", h, ok, want)
	}
}

// What can be read says the same when it is written again.
func FuzzParseHold(f *testing.F) {
	f.Add("#held db/db-0 eth0 hold 3600 1795258800 u1\r\neth0")
	f.Add("#held - - cool-down 0 forever -\r\n-")
	f.Add("#held db/db-0 - hold forever 1 -\r\n")
	f.Add("#held db/db-0 eth0 hold 3600 1795258800 u1 registry\r\neth0")
	f.Fuzz(func(t *testing.T, content string) {
		c, ok := ParseHold(content)
		if !ok {
			return
		}
		l := lease.Lease{
			ID: "00112233445566aa", Pool: testPool, Address: netip.MustParseAddr("10.0.0.5"), State: lease.Held,
			Namespace: c.Namespace, Name: c.Name, UID: c.UID, Holder: lease.Holder{IfName: c.IfName},
			ReserveAs: c.ReserveAs,
			Window:    c.Window, IsHold: c.IsHold, ReleasedAt: now, Hold: lease.Forever,
		}
		if !c.Until.IsZero() {
			l.Hold = lease.Window(max(c.Until.Sub(now.Wall), 0))
		}
		if l.Validate() != nil || l.Hold == lease.Forever != c.Until.IsZero() ||
			!c.Until.IsZero() && c.Until.Before(now.Wall) {
			return // over, or so far away that the clock cannot say it
		}
		again, ok := ParseHold(formatHold(l, now))
		if !ok || !reflect.DeepEqual(again, c) {
			t.Errorf("%q\nread as    %+v\nread again %+v, %v", content, c, again, ok)
		}
	})
}
