package importer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

const testCoolDown = 2 * time.Minute

var (
	testPool = lease.Pool{DataDir: "/var/lib/cni/networks", Network: "cbr0"}
	wall     = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	now      = lease.Instant{Wall: wall, Boot: time.Hour, BootID: "boot-1"}
	podNetns = lease.Netns{Path: "/run/netns/db-0", Dev: 4, Ino: 11}
	other    = lease.Netns{Path: "/run/netns/other", Dev: 4, Ino: 12}

	namespaces = map[string]lease.Netns{"db-0": podNetns, "other": other,
		"second": {Path: "/run/netns/second", Dev: 4, Ino: 13}, "gone": {Path: "/run/netns/gone"}}
)

func ids() func() string {
	n := 0
	return func() string { n++; return fmt.Sprintf("%016x", n) }
}

var kinds = map[string]kind{"file": fromFile, "dead-cache": fromDeadCache, "kruise": fromKruise,
	"hold-file": fromHoldFile, "live-cache": fromLiveCache, "living": fromLiving}

// parse returns a candidate in the form of testdata/decide.txt.
func parse(line string) candidate {
	words := strings.Fields(line)
	c := candidate{Kind: kinds[words[0]], Address: netip.MustParseAddr(words[1])}
	c.Source = fmt.Sprintf("source %d", c.Kind)
	if words[2] != "never" {
		c.Modified = wall.Add(-duration(words[2]))
	}
	for _, w := range words[3:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "pod":
			c.Namespace, c.Name, c.IfName = "db", value, "eth0"
		case "container":
			c.ContainerID, c.IfName = value, "eth0"
		case "netns":
			c.Netns, c.IfName = namespaces[value], "eth0"
		case "if":
			c.IfName = value
		case "uid":
			c.UID = value
		case "as":
			c.ReserveAs = value
		case "mac":
			c.MAC = value
		case "source":
			c.Source = value
		case "window":
			c.Window, c.WindowKnown = lease.Window(duration(value)), true
		case "until":
			c.Released, c.Until = true, wall.Add(duration(value))
		case "released":
			c.Released = true
		case "hold":
			c.IsHold = true
		case "unreadable":
			c.Unreadable = true
		default:
			panic("unknown word in " + line)
		}
	}
	return c
}

func duration(text string) time.Duration {
	if text == "forever" {
		return time.Duration(lease.Forever)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}

// story is a finding in short: what the table wants to see of it.
func story(f Finding) string {
	l := f.Lease
	words := []string{l.Address.String(), l.State.String()}
	if l.State == lease.Held {
		kind := "cool-down"
		if l.IsHold {
			kind = "hold"
		}
		words = append(words, kind, l.Hold.Round(time.Second).String())
	}
	who := "nobody"
	if l.Name != "" {
		who = l.Name
	}
	if l.UID != "" {
		who += "/" + l.UID
	}
	words = append(words, who)
	for _, w := range []string{l.Holder.ContainerID, l.Holder.IfName, l.MAC} {
		if w != "" {
			words = append(words, w)
		}
	}
	if l.Holder.Netns.Ino != 0 {
		words = append(words, l.Holder.Netns.Path)
	}
	if l.Window != 0 {
		words = append(words, "window", l.Window.Round(time.Second).String())
	}
	if l.Superseded {
		words = append(words, "superseded")
	}
	if f.FormerInFile {
		words = append(words, "former in file")
	}
	if l.ReserveAs != "" {
		words = append(words, "as", l.ReserveAs)
	}
	return strings.Join(words, " ")
}

// TestDecide reads the cases of testdata/decide.txt.
func TestDecide(t *testing.T) {
	defined := map[string]candidate{}
	for _, c := range cases.Read(t, "testdata/decide.txt") {
		var candidates []candidate
		for _, line := range c.Given {
			if short, long, ok := strings.Cut(line, ": "); ok {
				defined[short] = parse(long)
			} else if known, ok := defined[line]; ok {
				candidates = append(candidates, known)
			} else {
				candidates = append(candidates, parse(line))
			}
		}
		if c.Name == "" {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			var got []string
			for _, f := range decide(candidates, testPool, now, testCoolDown, ids()) {
				got = append(got, story(f))
				of := func(kinds ...kind) bool {
					return anyOf(candidates, func(c candidate) bool {
						return c.Address == f.Lease.Address && slices.Contains(kinds, c.Kind)
					})
				}
				check.Equal(t, f.InUse, of(fromLiving, fromLiveCache), story(f), "in use")
				check.Equal(t, f.IsOurs, !f.InUse && of(fromHoldFile), story(f), "ours")
				if f.Why == "" || strings.ContainsAny(f.Why, "\n%") {
					t.Errorf("%s: why is %q", story(f), f.Why)
				}
				must.Succeed(t, f.Lease.Validate(), story(f))
			}
			if !reflect.DeepEqual(got, c.Want) {
				t.Errorf("\n got %q\nwant %q", got, c.Want)
			}
		})
	}
}

// A file of unknown owner is believed in this boot only; so is what lives.
func TestDecideBindsToThisBoot(t *testing.T) {
	found := decide([]candidate{parse("file 10.0.0.5 0s"), parse("living 10.0.0.6 0s netns=db-0")}, testPool, now,
		testCoolDown, ids())
	for _, f := range found {
		if l := f.Lease; l.Holder.BootID != "boot-1" || l.BoundAt != now || l.CoolDown != testCoolDown ||
			l.Pool != testPool ||
			l.Set != "" {
			t.Errorf("%+v", l)
		}
	}
	if len(found) != 2 || found[0].Lease.ID == found[1].Lease.ID {
		t.Errorf("%+v", found)
	}
}

func TestDecideHoldsFromNow(t *testing.T) {
	found := decide([]candidate{parse("kruise 10.0.0.5 1h pod=db-0 window=1h hold until=1m")}, testPool, now,
		testCoolDown,
		ids())
	l := found[0].Lease
	if l.ReleasedAt != now || l.Remaining(now) != lease.Window(time.Minute) || l.Holder.Netns.Ino != 0 ||
		l.Holder.BootID != "" {
		t.Errorf("%+v", l)
	}
}

// The path of the last holder's namespace shows whether it still has the address.
func TestDecideKeepsThePathOfANamespace(t *testing.T) {
	dead := parse("dead-cache 10.0.0.5 1h pod=db-0 container=c1 netns=gone")
	found := decide([]candidate{dead}, testPool, now, testCoolDown, ids())
	if l := found[0].Lease; l.State != lease.Held || l.Holder.Netns != namespaces["gone"] {
		t.Errorf("%+v", l)
	}
}

// anyCandidates draws candidates of a few pods, containers and addresses, so that they
// contradict each other in every way.
func anyCandidates(t *rapid.T) []candidate {
	one := rapid.Custom(func(t *rapid.T) candidate {
		c := candidate{
			Kind: kind(rapid.IntRange(int(fromFile), int(fromLiving)).Draw(t, "kind")),
			Address: netip.MustParseAddr(rapid.SampledFrom([]string{"10.0.0.5", "10.0.0.6", "10.0.0.7",
				"fd00::5"}).Draw(t, "address")),
			ContainerID: rapid.SampledFrom([]string{"", "c1", "c2", "c3"}).Draw(t, "container"),
			IfName:      "eth0",
			Modified:    wall.Add(-time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * time.Hour),
			Unreadable:  rapid.Bool().Draw(t, "unreadable"),
			Window: rapid.SampledFrom([]lease.Window{0, lease.Window(time.Minute), lease.Window(time.Hour),
				lease.Forever}).Draw(t, "window"),
			WindowKnown: rapid.Bool().Draw(t, "known"),
		}
		if rapid.Bool().Draw(t, "pod") {
			c.Namespace, c.Name = "db", rapid.SampledFrom([]string{"db-0", "db-1"}).Draw(t, "name")
		}
		if rapid.Bool().Draw(t, "released") {
			c.Released, c.Until = true, wall.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "until"))*30*time.Minute)
		}
		switch c.Kind {
		case fromLiving, fromLiveCache:
			c.Netns = rapid.SampledFrom([]lease.Netns{podNetns, other}).Draw(t, "netns")
			if c.Kind == fromLiving {
				c.Namespace, c.Name, c.ContainerID, c.Window, c.WindowKnown = "", "", "", 0, false
			}
		case fromKruise, fromHoldFile:
			c.IsHold = c.Name != "" && c.Window > 0
		}
		return c
	})
	candidates := rapid.SliceOfN(one, 0, 8).Draw(t, "candidates")
	for i := range candidates {
		candidates[i].Source = fmt.Sprintf("source %d", i)
	}
	return candidates
}

// TestDecideProperties checks what holds for all candidates, I1 above all.
func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		candidates := anyCandidates(t)
		found := decide(candidates, testPool, now, testCoolDown, ids())

		shuffled := append([]candidate(nil), candidates...)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if again := decide(shuffled, testPool, now, testCoolDown, ids()); !reflect.DeepEqual(found, again) {
			t.Fatalf("the order of the candidates matters:\n%+v\n%+v", found, again)
		}

		leases := map[netip.Addr]lease.Lease{}
		keys := map[string]string{}
		var last netip.Addr
		for _, f := range found {
			l := f.Lease
			must.Succeed(t, l.Validate(), l)
			if last.IsValid() && !last.Less(l.Address) {
				t.Fatalf("%s comes after %s", l.Address, last)
			}
			last, leases[l.Address] = l.Address, l
			if l.State == lease.Held && l.IsHold && l.Hold > l.Window {
				t.Fatalf("held for longer than its window: %+v", l)
			}
			if l.State == lease.Bound && !l.Key().IsZero() {
				if id, known := keys[l.Name]; known && id != l.Holder.ContainerID {
					t.Fatalf("two containers are pod %s: %s and %s", l.Name, id, l.Holder.ContainerID)
				}
				keys[l.Name] = l.Holder.ContainerID
			}
		}
		for _, c := range candidates {
			l, imported := leases[c.Address]
			if (c.Kind == fromLiving || c.Kind == fromLiveCache) && l.State != lease.Bound {
				t.Fatalf("a living address is %s: %+v", l.State, c)
			}
			marked := func(o candidate) bool { return o.Address == c.Address && o.Kind == fromHoldFile }
			if c.Kind == fromFile && !imported && !anyOf(candidates, marked) {
				t.Fatalf("an address with a file is free: %+v", c)
			}
		}
		for a := range leases {
			if !anyOf(candidates, func(c candidate) bool { return c.Address == a }) {
				t.Fatalf("%s comes out of nowhere", a)
			}
		}
	})
}

func anyOf(candidates []candidate, ok func(candidate) bool) bool {
	for _, c := range candidates {
		if ok(c) {
			return true
		}
	}
	return false
}
