package lease

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

var (
	testPool  = Pool{DataDir: "/var/lib/cni/networks", Network: "cbr0"}
	testAddr  = netip.MustParseAddr("10.0.0.5")
	t0        = Instant{Wall: time.Unix(1_700_000_000, 0), Boot: time.Hour, BootID: "boot-1"}
	oldHolder = Holder{ContainerID: "old", IfName: "eth0", Netns: Netns{"/run/netns/old", 4, 11}, BootID: "boot-1"}
	newHolder = Holder{ContainerID: "new", IfName: "eth0", Netns: Netns{"/run/netns/new", 4, 12}, BootID: "boot-1"}
)

func after(d time.Duration) Instant {
	return Instant{Wall: t0.Wall.Add(d), Boot: t0.Boot + d, BootID: t0.BootID}
}

// states returns leases of db/db-0, uid u1. All events are applied 10 s after their last change.
func states() map[string]Lease {
	bound := Lease{
		ID: "00112233445566aa", Pool: testPool, Address: testAddr, Set: "s", State: Bound,
		Namespace: "db", Name: "db-0", UID: "u1", Holder: oldHolder, CoolDown: 2 * time.Minute, BoundAt: t0,
	}
	with := func(l Lease, change func(*Lease)) Lease { change(&l); return l }
	windowed := with(bound, func(l *Lease) { l.Window = Window(time.Hour) })
	held := func(l Lease, isHold bool, hold time.Duration) Lease {
		return with(l, func(l *Lease) { l.State, l.IsHold, l.Hold, l.ReleasedAt = Held, isHold, Window(hold), t0 })
	}
	return map[string]Lease{
		"none":       {},
		"bound":      bound,
		"windowed":   windowed,
		"keyless":    with(bound, func(l *Lease) { l.Namespace, l.Name, l.UID = "", "", "" }),
		"superseded": with(bound, func(l *Lease) { l.Superseded = true }),
		"waiting":    with(windowed, func(l *Lease) { l.RefusedAt, l.RefusedFor = t0, "u2" }),
		"hold":       held(windowed, true, time.Hour),
		"deferred":   held(windowed, true, 2*time.Hour),
		"cool":       held(bound, false, 2*time.Minute),
		"hold-over":  held(windowed, true, 5*time.Second),
		"cool-over":  held(bound, false, 5*time.Second),
		"unclaimed":  with(held(bound, false, 2*time.Minute), func(l *Lease) { l.Superseded = true }),
		"named":      with(windowed, func(l *Lease) { l.ReserveAs = "db" }),
		"leaving":    with(windowed, func(l *Lease) { l.ReserveAs, l.Leaving = "db", true }),
		"named-hold": with(held(windowed, true, time.Hour), func(l *Lease) { l.ReserveAs = "db" }),
		"ownerless":  with(windowed, func(l *Lease) { l.Holder.ContainerID = "" }),
		"no-cool":    with(bound, func(l *Lease) { l.CoolDown = 0 }),
		"no-uid":     with(held(bound, false, 2*time.Minute), func(l *Lease) { l.UID = "" }),
	}
}

func bind(h Holder, uid string, last Liveness) Bind {
	return Bind{Lease: Lease{
		ID: "ffeeddccbbaa9988", Pool: testPool, Address: testAddr, Set: "s",
		Namespace: "db", Name: "db-0", UID: uid, Holder: h,
		Window: Window(time.Minute), CoolDown: 2 * time.Minute,
	}, LastHolder: last}
}

func events() map[string]Event {
	otherPod := bind(newHolder, "u9", Dead)
	otherPod.Name = "web-1"
	sameNetns := bind(newHolder, "u2", Alive)
	sameNetns.Holder.Netns = oldHolder.Netns
	sameNetns.Holder.Netns.Path = "/proc/77/ns/net"
	sibling := bind(newHolder, "u9", Dead)
	sibling.Name, sibling.ReserveAs = "web-1", "db"
	living := sibling
	living.LastHolder = Alive
	namesake := bind(newHolder, "u9", Dead)
	namesake.Name = "db" // as the reservation name
	chosen := Lease{Pool: testPool, Address: testAddr, Set: "s", Namespace: "db", Name: "db-0", Window: Forever,
		Holder: Holder{IfName: "eth0"}}
	otherChosen := chosen
	otherChosen.Name = "web-1"
	moved := bind(oldHolder, "u1", Unknown)
	moved.Holder.Netns = newHolder.Netns
	nobody := oldHolder
	nobody.ContainerID = ""
	return map[string]Event{
		"again":           bind(oldHolder, "u1", Unknown),
		"again/moved":     moved,
		"back/dead":       bind(newHolder, "u2", Dead),
		"back/unknown":    bind(newHolder, "u2", Unknown),
		"back/alive":      bind(newHolder, "u2", Alive),
		"back/same-netns": sameNetns,
		"same-uid":        bind(newHolder, "u1", Dead),
		"no-uid":          bind(newHolder, "", Dead), // only the UID identifies a pod
		"other-pod":       otherPod,
		"sibling":         sibling,
		"sibling/alive":   living,
		"namesake":        namesake,
		"del":             Release{Holder: oldHolder},
		"del/limited":     Release{Holder: oldHolder, Limited: true},
		"gc/alive":        Release{Holder: oldHolder, LastHolder: Alive},
		"late-del":        Release{Holder: newHolder},
		"del/nobody":      Release{},
		"del/ownerless":   Release{Holder: nobody}, // of a lease whose owner is unknown
		"dead":            Release{Holder: oldHolder, Collected: true, LastHolder: Dead},
		"dead/unknown":    Release{Holder: oldHolder, Collected: true},
		"expire":          Expire{LastHolder: Dead},
		"expire/unknown":  Expire{LastHolder: Unknown},
		"expire/alive":    Expire{LastHolder: Alive},
		"yield":           Yield{LastHolder: Dead},
		"yield/unknown":   Yield{LastHolder: Unknown, Holds: true},
		"yield/hold":      Yield{LastHolder: Dead, Holds: true},
		"yield/alive":     Yield{LastHolder: Alive, Holds: true},
		"revoke":          Revoke{LastHolder: Unknown},
		"revoke/dead":     Revoke{LastHolder: Dead},
		"revoke/alive":    Revoke{LastHolder: Alive},
		"revoke/force":    Revoke{LastHolder: Alive, Force: true},
		"revoke/keep":     Revoke{LastHolder: Alive, KeepBound: true},
		"refuse":          Refuse{Newcomer: "u2", Timeout: time.Minute},
		"supersede/early": Supersede{Newcomer: "u2", Timeout: time.Minute},
		"supersede":       Supersede{Newcomer: "u2", Timeout: 5 * time.Second},
		"window":          SetWindow{UID: "u1", Window: Window(time.Hour)},
		"window/less":     SetWindow{UID: "u1", Window: Window(30 * time.Minute)},
		"window/none":     SetWindow{UID: "u1"},
		"window/limited":  SetWindow{UID: "u1", Window: Window(time.Hour), Limited: true},
		"window/other":    SetWindow{UID: "u9", Window: Window(time.Hour)},
		"name":            SetWindow{UID: "u1", Window: Window(time.Hour), ReserveAs: "db"},
		"name/other":      SetWindow{UID: "u1", Window: Window(time.Hour), ReserveAs: "web"},
		"leave":           Leave{UID: "u1"},
		"leave/other":     Leave{UID: "u9"},
		"defer":           Defer{Rest: 3 * time.Hour},
		"reserve":         Reserve{Lease: chosen, ID: "ffeeddccbbaa9988", Hold: Forever, LastHolder: Dead},
		"reserve/other":   Reserve{Lease: otherChosen, ID: "ffeeddccbbaa9988", Hold: Forever, LastHolder: Dead},
		"reserve/alive":   Reserve{Lease: otherChosen, ID: "ffeeddccbbaa9988", Hold: Forever, LastHolder: Alive},
		"rebase":          Rebase{},
	}
}

// TestApply wants the results of testdata/pairs.txt, of every event in every state: "same" is an
// unchanged lease, * a lease that lost its key, a word in parentheses an error.
func TestApply(t *testing.T) {
	table := must.Read(t, "testdata/pairs.txt")
	rows := strings.Split(strings.TrimSpace(string(table)), "\n")
	columns := strings.Fields(rows[0])
	all, ev := states(), events()
	check.Equal(t, len(rows)-1, len(ev), "events in the table")
	check.Equal(t, len(columns), len(all), "states in the table")
	for _, row := range rows[1:] {
		cells := strings.Fields(row)
		e, ok := ev[cells[0]]
		if !ok || len(cells) != len(columns)+1 {
			t.Fatalf("invalid row %q", row)
		}
		for i, name := range columns {
			before := all[name]
			next, err := Apply(before, e, after(10*time.Second))
			check.Equal(t, outcome(before, next, err), cells[i+1], cells[0], "of", name, err)
			if err != nil && !equal(next, before) {
				t.Errorf("%s of %s failed and changed the lease", cells[0], name)
			}
			if next.State != None {
				must.Succeed(t, next.Validate(), cells[0], "of", name)
			}
		}
	}
}

// A hold that no pod has had lasts as long as its owner last said. Otherwise a hold only gets
// longer.
func TestReserveAgain(t *testing.T) {
	reserve := func(owner string, hold Window) Reserve {
		return Reserve{ID: "ffeeddccbbaa9988", Hold: hold, Lease: Lease{Pool: testPool, Address: testAddr, Set: "s",
			Namespace: "db", Name: "db-0", Window: Forever, Owner: owner, Holder: Holder{IfName: "eth0"}}}
	}
	hour := Window(time.Hour)
	for name, c := range map[string]struct {
		first, second Reserve
		used          bool
		want          Window
	}{
		"longer":            {reserve("a", hour), reserve("a", 2*hour), false, 2 * hour},
		"shorter":           {reserve("a", Forever), reserve("a", hour), false, hour},
		"the same":          {reserve("a", Forever), reserve("a", Forever), false, Forever},
		"shorter, by b":     {reserve("a", 2*hour), reserve("b", hour), false, 2*hour - Window(time.Minute)},
		"longer, by b":      {reserve("a", hour), reserve("b", 2*hour), false, 2 * hour},
		"a pod has had it":  {reserve("a", 2*hour), reserve("a", hour), true, 2*hour - Window(time.Minute)},
		"shorter than used": {reserve("a", hour), reserve("a", 2*hour), true, 2 * hour},
	} {
		l, err := Apply(Lease{}, c.first, after(0))
		if err != nil || !l.IsUnused() {
			t.Fatalf("%s: %+v, %v", name, l, err)
		}
		if c.used {
			l.UID = "u1"
		}
		now := after(time.Minute)
		next, err := Apply(l, c.second, now)
		if got := next.Remaining(now); err != nil || got != c.want || next.Owner != "a" || next.IsUnused() == c.used {
			t.Errorf("%s: %s, %v, want %s: %+v", name, got, err, c.want, next)
		}
	}
}

func outcome(before, next Lease, err error) string {
	for e, word := range map[error]string{ErrTaken: "(taken)", ErrHolderAlive: "(alive)", ErrNotHolder: "(holder)",
		ErrNotDue: "(due)", ErrInvalid: "(invalid)"} {
		if errors.Is(err, e) {
			return word
		}
	}
	word := next.State.String()
	switch {
	case equal(before, next):
		return "same"
	case next.State == Held && next.IsHold:
		word = "hold"
	case next.State == Held:
		word = "cool"
	}
	if next.Superseded {
		word += "*"
	}
	return word
}

func equal(a, b Lease) bool { return reflect.DeepEqual(a, b) }

// full returns a valid lease in which every field that the state allows is set, with its own value.
func full(state State) Lease {
	l := Lease{
		ID: "00112233445566aa", Pool: testPool, Address: testAddr, Set: "s", State: state,
		Namespace: "db", Name: "db-0", UID: "u1", Holder: oldHolder, MAC: "02:00:00:00:00:01",
		Window: Window(time.Hour), MaxWindow: Window(2 * time.Hour), CoolDown: time.Minute, HeldLimit: 3, BoundAt: t0,
		NamespaceUID: "ns1", Owner: "StatefulSet.apps/db", RefusedAt: t0, RefusedFor: "u2", Extra: []byte("later"),
	}
	l.ReserveAs, l.Leaving = "db", state == Bound
	if state == Held {
		l.IsHold, l.Hold, l.ReleasedAt = true, Window(time.Hour), t0
	}
	return l
}

// TestEventsChangeOnlyTheirFields compares whole leases.
func TestEventsChangeOnlyTheirFields(t *testing.T) {
	for _, state := range []State{Bound, Held} {
		l := reflect.ValueOf(full(state))
		for i := range l.NumField() {
			name := l.Type().Field(i).Name
			ofHold := name == "IsHold" || name == "Hold" || name == "ReleasedAt"
			ofOther := ofHold && state == Bound || name == "Leaving" && state == Held
			if name != "Superseded" && l.Field(i).IsZero() != ofOther {
				t.Fatalf("%s lease: field %s is %v", state, name, l.Field(i))
			}
		}
	}
	now := after(10 * time.Second)
	claim := Bind{Lease: Lease{
		ID: "unused", Pool: testPool, Address: testAddr, Set: "s2", Namespace: "db", Name: "db-0", UID: "u2",
		Holder: newHolder, Window: Window(time.Minute), MaxWindow: Window(time.Hour), CoolDown: time.Second,
		HeldLimit: 4, ReserveAs: "db",
	}, LastHolder: Dead}
	claimed := Lease{
		ID: "00112233445566aa", Pool: testPool, Address: testAddr, Set: "s2", State: Bound,
		Namespace: "db", Name: "db-0", UID: "u2", Holder: newHolder, MAC: "02:00:00:00:00:01",
		Window: Window(time.Minute), MaxWindow: Window(time.Hour), CoolDown: time.Second,
		HeldLimit: 4, BoundAt: now,
		NamespaceUID: "ns1", Owner: "StatefulSet.apps/db", Extra: []byte("later"), ReserveAs: "db",
	}
	first := claimed
	first.ID, first.MAC, first.NamespaceUID, first.Owner, first.Extra = "unused", "", "", "", nil
	limited := full(Held)
	limited.Superseded, limited.IsHold, limited.Window = true, false, 0
	limited.RefusedAt, limited.RefusedFor, limited.Hold, limited.ReleasedAt = Instant{}, "", Window(time.Minute), now
	released := full(Held)
	released.ReleasedAt, released.RefusedAt, released.RefusedFor = now, Instant{}, ""
	over := full(Held)
	over.Hold = Window(time.Second)
	again := claim // evidence of life is read for the namespace in the lease
	again.Holder = oldHolder
	again.Holder.Netns = newHolder.Netns
	moved := full(Bound)
	moved.Holder = again.Holder
	for name, c := range map[string]struct {
		before Lease
		event  Event
		want   Lease
	}{
		"a new lease":           {Lease{}, claim, first},
		"a claim":               {full(Held), claim, claimed},
		"a take-over":           {full(Bound), claim, claimed},
		"a repeated ADD":        {full(Bound), again, moved},
		"a release":             {full(Bound), Release{Holder: oldHolder}, released},
		"a revoked hold":        {full(Held), Revoke{LastHolder: Unknown}, limited},
		"a deferral of nothing": {over, Defer{Rest: 0}, over},
	} {
		if got, err := Apply(c.before, c.event, now); err != nil || !equal(got, c.want) {
			t.Errorf("%s:\n%+v, %v, want\n%+v", name, got, err, c.want)
		}
	}
	_, err := claim.apply(Lease{State: 7}, now)
	check.Is(t, err, ErrInvalid, "a claim in an unknown state")
}

func TestSetWindowOfAHold(t *testing.T) {
	for _, c := range []struct {
		name, state string
		window, max time.Duration
		limit       int
		want        string // window, hold or cool-down, and its length
	}{
		{"longer", "hold", 3 * time.Hour, 0, 0, "3h0m0s hold 3h0m0s"},
		{"shorter", "hold", time.Minute, 0, 0, "1m0s hold 1m0s"},
		{"shorter, the end was deferred", "deferred", time.Minute, 0, 0, "1m0s hold 2h0m0s"},
		{"longer than the deferred end", "deferred", 3 * time.Hour, 0, 0, "3h0m0s hold 3h0m0s"},
		{"no window", "hold", 0, 0, 0, "0s cool 2m0s"},
		{"longer than the configuration allows", "cool", time.Duration(Forever), time.Hour, 0, "1h0m0s hold 1h0m0s"},
		{"the configuration allows no holds", "cool", time.Hour, 0, NoneHeld, "0s cool 2m0s"},
	} {
		l := states()[c.state]
		l.MaxWindow, l.HeldLimit = Window(c.max), c.limit
		e := SetWindow{UID: "u1", Window: Window(c.window), Owner: "StatefulSet.apps/db"}
		got, err := Apply(l, e, after(time.Second))
		must.Succeed(t, err)
		kind := map[bool]string{true: "hold", false: "cool"}[got.IsHold]
		if text := fmt.Sprintf("%s %s %s", got.Window, kind, got.Hold); text != c.want || got.Owner != e.Owner {
			t.Errorf("%s: %s of %s, want %s", c.name, text, got.Owner, c.want)
		}
	}
}

// TestRemaining: within a boot the boot clock is used, across boots the wall clock, and the result
// is never more than the hold.
func TestRemaining(t *testing.T) {
	l := states()["hold"] // released at t0, held for an hour
	at := func(wall, boot time.Duration, id string) Instant {
		return Instant{Wall: t0.Wall.Add(wall), Boot: boot, BootID: id}
	}
	for _, c := range []struct {
		name string
		now  Instant
		want time.Duration
	}{
		{"ten minutes later", after(10 * time.Minute), 50 * time.Minute},
		{"the wall clock is set a day ahead", at(24*time.Hour, t0.Boot+10*time.Minute, "boot-1"), 50 * time.Minute},
		{"the wall clock is set a day back", at(-24*time.Hour, t0.Boot+10*time.Minute, "boot-1"), 50 * time.Minute},
		{"after a reboot", at(20*time.Minute, time.Minute, "boot-2"), 40 * time.Minute},
		{"after a reboot, the wall clock is in the past", at(-48*time.Hour, time.Minute, "boot-2"), time.Hour},
		{"after a reboot, the wall clock is far in the future", at(99*time.Hour, time.Minute, "boot-2"), 0},
		{"the boot id is unknown", at(20*time.Minute, t0.Boot, ""), 40 * time.Minute},
	} {
		check.Equal(t, l.Remaining(c.now), Window(c.want), c.name)
	}
	for now, want := range map[Instant]time.Time{
		after(time.Minute):   t0.Wall.Add(time.Hour),
		after(time.Hour):     t0.Wall.Add(time.Hour),
		after(2 * time.Hour): t0.Wall.Add(2 * time.Hour), // over: now
		at(24*time.Hour, t0.Boot+time.Minute, "boot-1"): t0.Wall.Add(25*time.Hour - time.Minute), // the clock was set
	} {
		if got := l.Until(now); !got.Equal(want) {
			t.Errorf("at %v: until %s, want %s", now, got, want)
		}
	}
	l.Hold = Forever
	if now := after(1e6 * time.Hour); l.Lapsed(now) || !l.Until(now).IsZero() {
		t.Error("a hold without an end has one")
	}
}

func TestRefuseKeepsTheFirstTimeOfEachPod(t *testing.T) {
	l := states()["windowed"]
	steps := []struct {
		newcomer string
		at       Instant
		since    Instant
	}{
		{"u2", after(0), after(0)},
		{"u2", after(time.Minute), after(0)},
		{"u3", after(2 * time.Minute), after(2 * time.Minute)},
		{"", after(3 * time.Minute), after(3 * time.Minute)}, // two pods without a UID
		{"", after(4 * time.Minute), after(3 * time.Minute)},
	}
	for _, s := range steps {
		var err error
		l, err = Apply(l, Refuse{Newcomer: s.newcomer}, s.at)
		must.Succeed(t, err)
		check.Equal(t, l.RefusedAt, s.since, s.newcomer, "was first rejected at")
	}
	_, err := Apply(l, Supersede{Newcomer: "u2", Timeout: time.Minute}, after(time.Hour))
	check.Is(t, err, ErrNotDue, "u3 was rejected since")
	_, err = Apply(l, Supersede{Timeout: time.Minute}, after(4*time.Minute))
	must.Succeed(t, err, "without a UID")
	if next, err := Apply(states()["windowed"], Supersede{Newcomer: "u2"}, after(0)); err != nil || !next.Superseded {
		t.Errorf("without a timeout: %+v, %v", next, err)
	}
	_, err = Apply(states()["windowed"], Supersede{Timeout: time.Minute}, after(time.Hour))
	check.Is(t, err, ErrNotDue, "without a UID and without a rejected ADD")
}

// A cool-down that a boot begins lasts for BootHold at least, also if a DEL ends the lease. Without
// CoolDown there is none. No limit applies.
func TestReleaseOfAnEarlierBoot(t *testing.T) {
	now := Instant{Wall: t0.Wall.Add(time.Hour), Boot: time.Minute, BootID: "another boot"}
	for _, c := range []struct {
		cool time.Duration
		now  Instant
		want Window
	}{
		{time.Minute, now, Window(BootHold)},
		{time.Hour, now, Window(time.Hour)},
		{time.Minute, after(time.Hour), Window(time.Minute)},
		{0, now, 0},
	} {
		l := states()["bound"]
		l.CoolDown = c.cool
		for _, collected := range []bool{true, false} {
			next, err := Apply(l, Release{Holder: oldHolder, Collected: collected, LastHolder: Dead}, c.now)
			if err != nil || next.Hold != c.want || next.IsHold {
				t.Errorf("cool-down %s, collected %v: %+v, %v; want %s", c.cool, collected, next, err, c.want)
			}
		}
	}
	for at, hold := range map[Instant]bool{now: true, after(time.Hour): false, {Wall: now.Wall}: false} {
		next, err := Apply(states()["windowed"], Release{Holder: oldHolder, Limited: true}, at)
		must.Succeed(t, err)
		check.Equal(t, next.IsHold, hold, "limited, in boot", at.BootID, next)
	}
}

// Only the cool-down of a pod that had the address before the boot ends when the pod is gone.
func TestIsBootHold(t *testing.T) {
	for _, c := range []struct {
		state, uid, bootID string
		want               bool
	}{
		{"cool", "u-1", "another boot", true},
		{"cool", "u-1", t0.BootID, false},
		{"cool", "0123abcd", "another boot", false}, // a static pod
		{"hold", "u-1", "another boot", false},
		{"bound", "u-1", "another boot", false},
	} {
		l := states()[c.state]
		l.UID = c.uid
		check.Equal(t, l.IsBootHold(c.bootID), c.want, c.state, "lease of", c.uid)
	}
}

// After the first call of a boot, holds of earlier boots are counted by the boot clock.
func TestRebase(t *testing.T) {
	boot := func(wall time.Duration) Instant {
		return Instant{Wall: t0.Wall.Add(wall), Boot: time.Minute, BootID: "boot-2"}
	}
	unset := Instant{Wall: time.Unix(60, 0), Boot: time.Minute, BootID: "boot-2"}
	old := func(wall time.Time) Lease {
		l := states()["hold"] // an hour
		l.ReleasedAt.Wall = wall
		return l
	}
	for _, c := range []struct {
		name string
		hold Lease
		now  Instant
		rest time.Duration
		wall time.Time // of its release, for the boot after this one
	}{
		{"twenty minutes", states()["hold"], boot(20 * time.Minute), 40 * time.Minute, t0.Wall},
		{"longer than the hold", states()["hold"], boot(2 * time.Hour), 0, t0.Wall},
		{"deferred", states()["deferred"], boot(30 * time.Minute), 90 * time.Minute, t0.Wall},
		{"released in the future, by a clock that is set", old(t0.Wall.Add(time.Hour)), boot(0), time.Hour, t0.Wall},
		{"the clock is not set now", states()["hold"], unset, time.Hour, t0.Wall},
		{"the clock was not set at the release", old(time.Unix(30, 0)), boot(0), time.Hour, t0.Wall},
		{"the clock was not set at the release and is not now", old(time.Unix(30, 0)), unset, time.Hour, unset.Wall},
	} {
		l, err := Apply(c.hold, Rebase{}, c.now)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if rest := l.Remaining(c.now); rest != Window(c.rest) || !l.ReleasedAt.Wall.Equal(c.wall) {
			t.Errorf("%s: %s left of a release at %s, want %s and %s", c.name, rest, l.ReleasedAt.Wall, c.rest, c.wall)
		}
		if l.Hold != c.hold.Hold || l.Window != c.hold.Window || l.Deferred() != c.hold.Deferred() {
			t.Errorf("%s: %+v became %+v", c.name, c.hold, l)
		}
		stepped := c.now
		stepped.Wall, stepped.Boot = stepped.Wall.Add(25*time.Hour), stepped.Boot+10*time.Minute
		check.Equal(t, l.Remaining(stepped), Window(max(c.rest-10*time.Minute, 0)), c.name,
			"ten minutes later, after the wall clock was set")
	}
	unread := boot(time.Minute)
	unread.BootID = ""
	_, err := Apply(states()["hold"], Rebase{}, unread)
	check.Is(t, err, ErrNotDue, "without a boot id")
}

func TestValidate(t *testing.T) {
	valid := states()
	for name, c := range map[string]struct {
		of     string
		change func(*Lease)
		want   string // "": it is valid
	}{
		"bound":                {"bound", func(*Lease) {}, ""},
		"held":                 {"hold", func(*Lease) {}, ""},
		"without a cool-down":  {"windowed", func(l *Lease) { l.CoolDown = 0 }, ""},
		"none":                 {"none", func(*Lease) {}, "no record"},
		"an unknown state":     {"bound", func(l *Lease) { l.State = 7 }, "state 7"},
		"no address":           {"bound", func(l *Lease) { l.Address = netip.Addr{} }, "no address"},
		"no network":           {"bound", func(l *Lease) { l.Pool.Network = "" }, "no network"},
		"a short id":           {"bound", func(l *Lease) { l.ID = l.ID[1:] }, "16 hex digits"},
		"bound and hold":       {"bound", func(l *Lease) { l.IsHold = true }, "fields of a hold"},
		"bound for a time":     {"bound", func(l *Lease) { l.Hold = 1 }, "fields of a hold"},
		"bound and released":   {"bound", func(l *Lease) { l.ReleasedAt = t0 }, "fields of a hold"},
		"held since no time":   {"cool", func(l *Lease) { l.ReleasedAt = Instant{} }, "time of its release"},
		"held for nobody":      {"hold", func(l *Lease) { l.Superseded = true }, "without a key"},
		"held for no time":     {"hold", func(l *Lease) { l.Hold = 0 }, "without a key or a length"},
		"a negative window":    {"bound", func(l *Lease) { l.Window = -1 }, "negative time"},
		"a negative limit":     {"bound", func(l *Lease) { l.MaxWindow = -1 }, "negative time"},
		"a negative cool-down": {"bound", func(l *Lease) { l.CoolDown = -1 }, "negative time"},
		"a negative hold":      {"cool", func(l *Lease) { l.Hold = -1 }, "negative time"},
	} {
		l := valid[c.of]
		c.change(&l)
		err := l.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestInstantIsAfter(t *testing.T) {
	for _, c := range []struct {
		i, o Instant
		want bool
	}{
		{after(1), t0, true},
		{t0, t0, false},
		{t0, after(1), false},
		{Instant{Wall: t0.Wall, Boot: 2, BootID: "boot-2"}, Instant{Boot: 1, BootID: "boot-1"}, false},
		{Instant{Boot: 2}, Instant{Boot: 1}, false},
	} {
		check.Equal(t, c.i.IsAfter(c.o), c.want, c.i, "is after", c.o)
	}
}

func TestIsRetained(t *testing.T) {
	for name, l := range states() {
		want := name == "windowed" || name == "waiting" || strings.HasPrefix(name, "hold") || name == "deferred" ||
			strings.HasPrefix(name, "named") || name == "leaving" || name == "ownerless"
		check.Equal(t, l.IsRetained(), want, name)
	}
}
