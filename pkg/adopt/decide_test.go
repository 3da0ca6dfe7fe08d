package adopt

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const testSoft = 2 * time.Minute

var (
	testPool = lease.Pool{DataDir: "/var/lib/cni/networks", Network: "cbr0"}
	wall     = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	now      = lease.Instant{Wall: wall, Boot: time.Hour, BootID: "boot-1"}
	podNetns = lease.Netns{Path: "/run/netns/db-0", Dev: 4, Ino: 11}
	other    = lease.Netns{Path: "/run/netns/other", Dev: 4, Ino: 12}
)

func ids() func() string {
	n := 0
	return func() string { n++; return fmt.Sprintf("%016x", n) }
}

// shown returns a candidate: what a source of the kind, written age ago, shows of an address.
func shown(k kind, addr string, age time.Duration, more ...func(*candidate)) candidate {
	c := candidate{Kind: k, Address: netip.MustParseAddr(addr), Source: fmt.Sprintf("source %d", k),
		Modified: wall.Add(-age)}
	for _, m := range more {
		m(&c)
	}
	return c
}

func podNamed(name string) func(*candidate) {
	return func(c *candidate) { c.Namespace, c.Name, c.IfName = "db", name, "eth0" }
}
func container(id string) func(*candidate) {
	return func(c *candidate) { c.ContainerID, c.IfName = id, "eth0" }
}
func uid(id string) func(*candidate)    { return func(c *candidate) { c.UID = id } }
func at(n lease.Netns) func(*candidate) { return func(c *candidate) { c.Netns = n; c.IfName = "eth0" } }
func window(d time.Duration) func(*candidate) {
	return func(c *candidate) { c.Window, c.WindowKnown = lease.Window(d), true }
}
func unreadable(c *candidate)  { c.Unreadable = true }
func firmly() func(*candidate) { return func(c *candidate) { c.Firm = true } }
func ending(in time.Duration) func(*candidate) {
	return func(c *candidate) { c.Released, c.Until = true, wall.Add(in) }
}

func leaseOf(state lease.State, id string) lease.Lease {
	l := lease.Lease{
		ID: "00112233445566aa", Pool: testPool, Address: netip.MustParseAddr("10.0.0.5"), Set: "s", State: state,
		Namespace: "db", Name: "db-0", UID: "u1", Window: lease.Window(time.Hour), Soft: testSoft, BoundAt: now,
		Holder: lease.Holder{ContainerID: id, IfName: "eth0", Netns: podNetns, BootID: "boot-1"},
	}
	if state == lease.Held {
		l.Firm, l.Hold, l.ReleasedAt = true, lease.Window(time.Hour), now
	}
	return l
}

// story is a finding in short: what the table wants to see of it.
func story(f Finding) string {
	l := f.Lease
	words := []string{l.Address.String(), l.State.String()}
	if l.State == lease.Held {
		strength := "soft"
		if l.Firm {
			strength = "firm"
		}
		words = append(words, strength, l.Hold.Round(time.Second).String())
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
	return strings.Join(words, " ")
}

func TestDecide(t *testing.T) {
	const a, b, a6 = "10.0.0.5", "10.0.0.6", "fd00::5"
	seen := shown(fromLiving, a, 0, at(podNetns),
		func(c *candidate) { c.MAC = "02:00:00:00:00:05"; c.Modified = time.Time{} })
	live := shown(fromLiveCache, a, time.Hour, podNamed("db-0"), container("c1"), uid("u1"), at(podNetns),
		window(time.Hour))
	dead := shown(fromDeadCache, a, time.Hour, podNamed("db-0"), container("c1"), uid("u1"), window(time.Hour))
	file := shown(fromFile, a, time.Hour+time.Second, container("c1"))
	kept := shown(fromKruise, a, time.Hour, podNamed("db-0"), container("c1"), window(time.Hour), firmly())
	again := shown(fromKruise, a, time.Minute, podNamed("db-0"), container("c2"), window(time.Hour), firmly())
	mark := shown(fromHoldFile, a, time.Minute, podNamed("db-0"), uid("u1"), window(time.Hour), firmly(),
		ending(20*time.Minute))

	for _, tt := range []struct {
		name       string
		candidates []candidate
		want       []string
	}{
		{"no source shows the address", nil, nil},

		// Living.
		{"a namespace has the address, nobody knows whose it is", []candidate{seen},
			[]string{"10.0.0.5 Bound nobody eth0 02:00:00:00:00:05 /run/netns/db-0"}},
		{"the cache knows", []candidate{seen, live, file},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"the cache has a newer entry, of another namespace that is gone",
			[]candidate{seen, live, shown(fromDeadCache, a, time.Minute, podNamed("web-0"), container("c9"))},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"a foreign namespace has the same address, too",
			[]candidate{shown(fromLiving, a, 0, at(other)), seen, live},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"only a foreign namespace has it (gVisor took it out of the pod's)",
			[]candidate{shown(fromLiving, a, 0, at(other)), live},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 /run/netns/db-0 window 1h0m0s"}},
		{"the entry's path leads nowhere, and the address lives", []candidate{seen, dead},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"the entry is of a container that is gone, and a newer file names another",
			[]candidate{seen, dead, shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound nobody c9 eth0 02:00:00:00:00:05 /run/netns/db-0"}},
		{"the newer file names the container of an older entry", []candidate{seen, dead,
			shown(fromDeadCache, a, 2*time.Hour, podNamed("web-0"),
				container("c9")), shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound web-0 c9 eth0 02:00:00:00:00:05 /run/netns/db-0"}},
		{"the entry's own namespace lives elsewhere, and a newer file names another container", []candidate{seen,
			shown(fromLiveCache, a, time.Hour, podNamed("web-0"), container("c1"),
				at(other)), shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound nobody c9 eth0 02:00:00:00:00:05 /run/netns/db-0"}},
		{"the entry is of the namespace that has the address, whatever a newer file says",
			[]candidate{seen, live, shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"the entry's path leads nowhere, the address lives, and the file cannot be read",
			[]candidate{seen, dead, shown(fromFile, a, 0, unreadable)},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"the entry is of a container that is gone, and a newer mark is of another pod", []candidate{seen,
			shown(fromDeadCache, a, time.Hour, podNamed("web-0"), container("c9")), mark},
			[]string{"10.0.0.5 Bound db-0/u1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"the entry is of a container that is gone, and a mark is of its pod", []candidate{seen,
			shown(fromDeadCache, a, time.Second, podNamed("db-0"), container("c1")), mark},
			[]string{"10.0.0.5 Bound db-0 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"the entry of the namespace is newer than the file: the fork has removed its reservation",
			[]candidate{seen, live, shown(fromFile, a, 2*time.Hour, container("c9"))},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s former in file"}},
		{"a mark knows the interface better than the namespace", []candidate{seen,
			shown(fromHoldFile, a, time.Minute, podNamed("db-0"), window(time.Hour), firmly(), ending(time.Minute),
				func(c *candidate) { c.IfName = "net1" })},
			[]string{"10.0.0.5 Bound db-0 net1 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"Kruise knows the pod, under a newer container than the file", []candidate{seen,
			shown(fromKruise, a, time.Minute, podNamed("db-0"), container("c2"), window(time.Hour)), file},
			[]string{"10.0.0.5 Bound db-0 c2 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s former in file"}},
		{"Kruise knows a newer container than the file and the cache, whose container is gone",
			[]candidate{seen, dead, again, file},
			[]string{"10.0.0.5 Bound db-0 c2 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s former in file"}},
		{"Kruise and the cache know a newer container than the file", []candidate{seen, again, file,
			shown(fromLiveCache, a, time.Minute, podNamed("db-0"), container("c2"), uid("u2"), at(podNetns))},
			[]string{"10.0.0.5 Bound db-0/u2 c2 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s former in file"}},
		{"Kruise and the cache know a newer container than the file, and the former one is in the cache", []candidate{
			seen, dead, again, file,
			shown(fromLiveCache, a, time.Minute, podNamed("db-0"), container("c2"), uid("u2"), at(podNetns))},
			[]string{"10.0.0.5 Bound db-0/u2 c2 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s former in file"}},
		{"the former container, which the file names, lives without the address", []candidate{seen, again, file,
			shown(fromLiveCache, a, time.Hour, podNamed("db-0"), container("c1"), at(other)),
			shown(fromLiveCache, a, time.Minute, podNamed("db-0"), container("c2"), at(podNetns))},
			[]string{"10.0.0.5 Bound db-0 c2 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"a late DEL had Kruise mark a live pod released", []candidate{seen,
			shown(fromKruise, a, time.Minute, podNamed("db-0"), container("c1"), window(time.Hour),
				ending(-time.Second)), file},
			[]string{"10.0.0.5 Bound db-0 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"Kruise's reservation is older than another container's file",
			[]candidate{seen, kept, shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound nobody c9 eth0 02:00:00:00:00:05 /run/netns/db-0"}},
		{"the cache knows the pod, Kruise its window", []candidate{seen,
			shown(fromLiveCache, a, time.Hour, podNamed("db-0"), container("c1"), at(podNetns)), kept},
			[]string{"10.0.0.5 Bound db-0 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},
		{"Kruise's window is another pod's", []candidate{seen,
			shown(fromLiveCache, a, time.Hour, podNamed("web-0"), container("c9"), at(podNetns)), kept},
			[]string{"10.0.0.5 Bound web-0 c9 eth0 02:00:00:00:00:05 /run/netns/db-0"}},
		{"the annotation has been taken away since", []candidate{seen,
			shown(fromLiveCache, a, time.Hour, podNamed("db-0"), container("c1"), at(podNetns), window(0)), kept},
			[]string{"10.0.0.5 Bound db-0 c1 eth0 02:00:00:00:00:05 /run/netns/db-0"}},
		{"only the file knows the container", []candidate{seen, file},
			[]string{"10.0.0.5 Bound nobody c1 eth0 02:00:00:00:00:05 /run/netns/db-0"}},
		{"the file knows the interface, which a DEL names, better than the namespace",
			[]candidate{seen, shown(fromFile, a, time.Hour, container("c1"), func(c *candidate) { c.IfName = "net1" })},
			[]string{"10.0.0.5 Bound nobody c1 net1 02:00:00:00:00:05 /run/netns/db-0"}},
		{"it is marked as held, and lives", []candidate{seen, mark},
			[]string{"10.0.0.5 Bound db-0/u1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 1h0m0s"}},

		// libcni's cache.
		{"gVisor: the entry's namespace lives, the address is in none", []candidate{live, file},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 /run/netns/db-0 window 1h0m0s"}},
		{"gVisor, and a newer file names another container",
			[]candidate{live, shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound nobody c9 eth0"}},
		{"gVisor, and a newer file names a container that is gone", []candidate{live,
			shown(fromDeadCache, a, 2*time.Hour, podNamed("web-0"),
				container("c9")), shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 /run/netns/db-0 window 1h0m0s former in file"}},
		{"gVisor, and an older file names another container",
			[]candidate{live, shown(fromFile, a, 2*time.Hour, container("c9"))},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 /run/netns/db-0 window 1h0m0s former in file"}},
		{"gVisor, and a file cannot be read", []candidate{live, shown(fromFile, a, 0, unreadable)},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 /run/netns/db-0 window 1h0m0s"}},
		{"a live entry before a mark", []candidate{live, mark},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 /run/netns/db-0 window 1h0m0s"}},
		{"an orphan with a long window", []candidate{dead, file},
			[]string{"10.0.0.5 Held firm 10m0s db-0/u1 c1 eth0 window 1h0m0s"}},
		{"an orphan with a short window", []candidate{shown(fromDeadCache, a, 0, podNamed("db-0"), container("c1"),
			window(time.Minute))},
			[]string{"10.0.0.5 Held firm 1m0s db-0 c1 eth0 window 1m0s"}},
		{"an orphan kept forever", []candidate{shown(fromDeadCache, a, 0, podNamed("db-0"), container("c1"),
			window(time.Duration(lease.Forever)))},
			[]string{"10.0.0.5 Held firm 10m0s db-0 c1 eth0 window forever"}},
		{"an orphan without a window", []candidate{shown(fromDeadCache, a, 0, podNamed("db-0"), container("c1"),
			uid("u1")),
			file},
			[]string{"10.0.0.5 Held soft 2m0s db-0/u1 c1 eth0"}},
		{"an orphan that is no pod", []candidate{shown(fromDeadCache, a, 0, container("c1")), file},
			[]string{"10.0.0.5 Held soft 2m0s nobody c1 eth0"}},
		{"of two entries for an address the newer one counts", []candidate{dead,
			shown(fromDeadCache, a, time.Minute, podNamed("web-0"), container("c9"), window(time.Minute))},
			[]string{"10.0.0.5 Held firm 1m0s web-0 c9 eth0 window 1m0s"}},
		{"of two entries for an address the newer one counts, whatever their names", []candidate{
			shown(fromDeadCache, a, 0, podNamed("web-0"), container("c9"), window(time.Minute), func(c *candidate) {
				c.Source = "z"
			}),
			shown(fromDeadCache, a, time.Hour, podNamed("db-0"), container("c1"), window(time.Hour),
				func(c *candidate) { c.Source = "a" })},
			[]string{"10.0.0.5 Held firm 1m0s web-0 c9 eth0 window 1m0s"}},
		{"of two entries of one age the first by name counts", []candidate{
			shown(fromDeadCache, a, 0, podNamed("web-0"), container("c9"), window(time.Minute), func(c *candidate) {
				c.Source = "z"
			}),
			shown(fromDeadCache, a, 0, podNamed("db-0"), container("c1"), window(time.Minute),
				func(c *candidate) { c.Source = "a" })},
			[]string{"10.0.0.5 Held firm 1m0s db-0 c1 eth0 window 1m0s"}},
		{"of an entry and a reservation that agree in all but their pods the reservation counts", []candidate{
			shown(fromKruise, a, 0, podNamed("db-0"), window(time.Minute), firmly(),
				func(c *candidate) { c.Source = "x" }),
			shown(fromDeadCache, a, 0, podNamed("web-0"), container("c9"), window(time.Minute),
				func(c *candidate) { c.Source = "x" })},
			[]string{"10.0.0.5 Held firm 1m0s db-0 eth0 window 1m0s"}},
		{"of two entries of a pod the newer one counts", []candidate{dead,
			shown(fromDeadCache, b, time.Minute, podNamed("db-0"), container("c2"), window(time.Hour))},
			[]string{"10.0.0.6 Held firm 10m0s db-0 c2 eth0 window 1h0m0s"}},
		{"of two entries of a pod and of one age the first by name counts", []candidate{
			shown(fromDeadCache, a, 0, podNamed("db-0"), container("c1"), window(time.Minute),
				func(c *candidate) { c.Source = "z" }),
			shown(fromDeadCache, b, 0, podNamed("db-0"), container("c2"), window(time.Minute),
				func(c *candidate) { c.Source = "a" })},
			[]string{"10.0.0.6 Held firm 1m0s db-0 c2 eth0 window 1m0s"}},
		{"the newer entry's address has gone to another pod: the older one promises nothing all the same",
			[]candidate{dead,
				shown(fromDeadCache, b, time.Minute, podNamed("db-0"), container("c2"), window(time.Hour)),
				shown(fromLiveCache, b, time.Second, podNamed("web-0"), container("c9"), at(other))},
			[]string{"10.0.0.6 Bound web-0 c9 eth0 /run/netns/other"}},
		{"a superseded entry whose file is left: a soft hold, for no pod", []candidate{dead, file,
			shown(fromDeadCache, b, time.Minute, podNamed("db-0"), container("c2"), window(time.Hour))},
			[]string{"10.0.0.5 Held soft 2m0s nobody c1 eth0", "10.0.0.6 Held firm 10m0s db-0 c2 eth0 window 1h0m0s"}},
		{"the pod lives elsewhere", []candidate{dead,
			shown(fromLiveCache, b, 2*time.Hour, podNamed("db-0"), container("c2"), at(podNetns), window(time.Hour))},
			[]string{"10.0.0.6 Bound db-0 c2 eth0 /run/netns/db-0 window 1h0m0s"}},
		{"both families of one entry", []candidate{dead,
			shown(fromDeadCache, a6, time.Hour, podNamed("db-0"), container("c1"), uid("u1"), window(time.Hour))},
			[]string{"10.0.0.5 Held firm 10m0s db-0/u1 c1 eth0 window 1h0m0s",
				"fd00::5 Held firm 10m0s db-0/u1 c1 eth0 window 1h0m0s"}},
		{"two addresses of one family in one entry", []candidate{dead,
			shown(fromDeadCache, b, time.Hour, podNamed("db-0"), container("c1"), uid("u1"), window(time.Hour))},
			[]string{"10.0.0.5 Held firm 10m0s db-0/u1 c1 eth0 window 1h0m0s",
				"10.0.0.6 Held firm 10m0s db-0/u1 c1 eth0 window 1h0m0s"}},
		{"the file names somebody who came later", []candidate{dead, shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound nobody c9 eth0"}},
		{"the file was cut off before the entry was made", []candidate{dead, shown(fromFile, a, time.Hour+time.Second)},
			[]string{"10.0.0.5 Held firm 10m0s db-0/u1 c1 eth0 window 1h0m0s"}},
		{"the file cannot be read, so it may name anybody", []candidate{dead,
			shown(fromFile, a, 0, unreadable)},
			[]string{"10.0.0.5 Bound nobody"}},
		{"the file cannot be read, and Kruise's window is running",
			[]candidate{kept, shown(fromFile, a, 0, unreadable)},
			[]string{"10.0.0.5 Bound nobody"}},
		{"force delete: two containers of a pod live", []candidate{live,
			shown(fromLiveCache, b, time.Minute, podNamed("db-0"), container("c2"), at(other), window(time.Hour))},
			[]string{"10.0.0.5 Bound db-0/u1 c1 eth0 /run/netns/db-0 superseded",
				"10.0.0.6 Bound db-0 c2 eth0 /run/netns/other window 1h0m0s"}},

		// Kruise.
		{"reserved and never released", []candidate{kept, file},
			[]string{"10.0.0.5 Held firm 1h0m0s db-0 c1 eth0 window 1h0m0s"}},
		{"the rest of a window", []candidate{shown(fromKruise, a, 0, podNamed("db-0"), container("c2"),
			window(time.Hour),
			firmly(), ending(20*time.Minute)), file},
			[]string{"10.0.0.5 Held firm 20m0s db-0 c2 eth0 window 1h0m0s former in file"}},
		{"gVisor: the newer container's namespace lives, the address is in none, and the file names the former one",
			[]candidate{again, file,
				shown(fromLiveCache, a, time.Minute, podNamed("db-0"), container("c2"), at(podNetns))},
			[]string{"10.0.0.5 Bound db-0 c2 eth0 /run/netns/db-0 window 1h0m0s former in file"}},
		{"released in the future: never more than the window",
			[]candidate{shown(fromKruise, a, 0, podNamed("db-0"), window(time.Hour), firmly(), ending(9*time.Hour))},
			[]string{"10.0.0.5 Held firm 1h0m0s db-0 eth0 window 1h0m0s"}},
		{"a window that is over", []candidate{shown(fromKruise, a, 0, podNamed("db-0"), window(time.Hour), firmly(),
			ending(-time.Second))}, nil},
		{"a window that is over, and a file", []candidate{shown(fromKruise, a, 0, podNamed("db-0"), container("c1"),
			window(time.Hour), firmly(), ending(-time.Second)), file},
			[]string{"10.0.0.5 Held soft 2m0s nobody c1 eth0"}},
		{"a window that is over, and a file that was written since",
			[]candidate{shown(fromKruise, a, time.Hour, podNamed("db-0"), container("c1"), window(time.Minute),
				firmly(),
				ending(-time.Second)),
				shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound nobody c9 eth0"}},
		{"a window that is over, and a file that cannot be read",
			[]candidate{shown(fromKruise, a, 0, podNamed("db-0"), container("c1"), window(time.Hour), firmly(),
				ending(-time.Second)),
				shown(fromFile, a, 0, unreadable)},
			[]string{"10.0.0.5 Bound nobody"}},
		{"a reservation knows more than the pod's dead entry",
			[]candidate{kept, shown(fromDeadCache, a, 0, podNamed("db-0"), container("c1"), window(time.Hour))},
			[]string{"10.0.0.5 Held firm 1h0m0s db-0 c1 eth0 window 1h0m0s"}},
		{"a newer file names a container that the cache knows for dead",
			[]candidate{kept, shown(fromFile, a, time.Minute, container("c2")),
				shown(fromDeadCache, a, 0, podNamed("db-0"), container("c2"), window(time.Hour))},
			[]string{"10.0.0.5 Held firm 1h0m0s db-0 c1 eth0 window 1h0m0s former in file"}},
		{"a newer file names the living container, whose window Kruise knows",
			[]candidate{kept, shown(fromFile, a, time.Minute, container("c2")),
				shown(fromLiveCache, a, 0, podNamed("db-0"), container("c2"), at(podNetns))},
			[]string{"10.0.0.5 Bound db-0 c2 eth0 /run/netns/db-0 window 1h0m0s"}},
		{"a reservation before another pod's dead entry", []candidate{kept,
			shown(fromDeadCache, a, 0, podNamed("web-0"), container("c9"), window(time.Hour))},
			[]string{"10.0.0.5 Held firm 1h0m0s db-0 c1 eth0 window 1h0m0s"}},
		{"a reservation of the file's container, whose window runs", []candidate{kept,
			shown(fromFile, a, time.Minute, container("c1"))},
			[]string{"10.0.0.5 Held firm 1h0m0s db-0 c1 eth0 window 1h0m0s"}},
		{"host-local has given the reserved address to another container since",
			[]candidate{kept, shown(fromFile, a, time.Minute, container("c9"))},
			[]string{"10.0.0.5 Bound nobody c9 eth0"}},
		{"the pod has another address since", []candidate{kept,
			shown(fromHoldFile, b, 0, podNamed("db-0"), window(time.Hour), firmly(), ending(time.Minute))},
			[]string{"10.0.0.6 Held firm 1m0s db-0 eth0 window 1h0m0s"}},

		// Marks.
		{"what is left of a hold", []candidate{mark}, []string{"10.0.0.5 Held firm 20m0s db-0/u1 eth0 window 1h0m0s"}},
		{"never more than its window", []candidate{shown(fromHoldFile, a, 0, podNamed("db-0"), window(time.Minute),
			firmly(),
			ending(time.Hour))},
			[]string{"10.0.0.5 Held firm 1m0s db-0 eth0 window 1m0s"}},
		{"forever", []candidate{shown(fromHoldFile, a, 0, podNamed("db-0"), window(time.Duration(lease.Forever)),
			firmly(),
			func(c *candidate) { c.Released = true })},
			[]string{"10.0.0.5 Held firm forever db-0 eth0 window forever"}},
		{"softly, and never longer than softly", []candidate{shown(fromHoldFile, a, 0, podNamed("db-0"), uid("u1"),
			ending(time.Hour))},
			[]string{"10.0.0.5 Held soft 2m0s db-0/u1 eth0"}},
		{"a hold that is over leaves nothing", []candidate{shown(fromHoldFile, a, 0, podNamed("db-0"),
			window(time.Hour),
			firmly(), ending(0)), kept}, nil},
		{"a mark before Kruise's older reservation", []candidate{mark, kept},
			[]string{"10.0.0.5 Held firm 20m0s db-0/u1 eth0 window 1h0m0s"}},

		// Files.
		{"a file alone", []candidate{file}, []string{"10.0.0.5 Bound nobody c1 eth0"}},
		{"an empty file", []candidate{shown(fromFile, a, 0)}, []string{"10.0.0.5 Bound nobody"}},
		{"in the order of addresses", []candidate{shown(fromFile, a6, 0), shown(fromFile, b, 0), shown(fromFile, a, 0)},
			[]string{"10.0.0.5 Bound nobody", "10.0.0.6 Bound nobody", "fd00::5 Bound nobody"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, f := range decide(tt.candidates, testPool, now, testSoft, ids()) {
				got = append(got, story(f))
				isOn := func(c candidate) bool { return c.Kind == fromLiving && c.Address == f.Lease.Address }
				if f.Seen != anyOf(tt.candidates, isOn) {
					t.Errorf("%s: on an interface: %v", story(f), f.Seen)
				}
				if f.Why == "" || strings.ContainsAny(f.Why, "\n%") {
					t.Errorf("%s: why is %q", story(f), f.Why)
				}
				if err := f.Lease.Validate(); err != nil {
					t.Errorf("%s: %v", story(f), err)
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("\n got %q\nwant %q", got, tt.want)
			}
		})
	}
}

// A file of unknown owner is believed in this boot only; so is what lives.
func TestDecideBindsToThisBoot(t *testing.T) {
	found := decide([]candidate{shown(fromFile, "10.0.0.5", 0), shown(fromLiving, "10.0.0.6", 0, at(podNetns))},
		testPool, now,
		testSoft, ids())
	for _, f := range found {
		if l := f.Lease; l.Holder.BootID != "boot-1" || l.BoundAt != now || l.Soft != testSoft || l.Pool != testPool ||
			l.Set != "" {
			t.Errorf("%+v", l)
		}
	}
	if len(found) != 2 || found[0].Lease.ID == found[1].Lease.ID {
		t.Errorf("%+v", found)
	}
}

func TestDecideHoldsFromNow(t *testing.T) {
	found := decide([]candidate{shown(fromKruise, "10.0.0.5", time.Hour, podNamed("db-0"), window(time.Hour), firmly(),
		ending(time.Minute))}, testPool, now, testSoft, ids())
	l := found[0].Lease
	if l.ReleasedAt != now || l.Remaining(now) != lease.Window(time.Minute) || l.Holder.Netns.Ino != 0 ||
		l.Holder.BootID != "" {
		t.Errorf("%+v", l)
	}
}

// The path of the last holder's namespace shows whether it still has the address.
func TestDecideKeepsThePathOfANamespace(t *testing.T) {
	path := lease.Netns{Path: "/run/netns/gone"}
	dead := shown(fromDeadCache, "10.0.0.5", time.Hour, podNamed("db-0"), container("c1"), at(path))
	found := decide([]candidate{dead}, testPool, now, testSoft, ids())
	if l := found[0].Lease; l.State != lease.Held || l.Holder.Netns != path {
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
			c.Firm = c.Name != "" && c.Window > 0
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
		found := decide(candidates, testPool, now, testSoft, ids())

		shuffled := append([]candidate(nil), candidates...)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if again := decide(shuffled, testPool, now, testSoft, ids()); !reflect.DeepEqual(found, again) {
			t.Fatalf("the order of the candidates matters:\n%+v\n%+v", found, again)
		}

		leases := map[netip.Addr]lease.Lease{}
		keys := map[string]string{}
		var last netip.Addr
		for _, f := range found {
			l := f.Lease
			if err := l.Validate(); err != nil {
				t.Fatalf("%+v: %v", l, err)
			}
			if last.IsValid() && !last.Less(l.Address) {
				t.Fatalf("%s comes after %s", l.Address, last)
			}
			last, leases[l.Address] = l.Address, l
			if l.State == lease.Held && l.Firm && l.Hold > l.Window {
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
			l, adopted := leases[c.Address]
			if (c.Kind == fromLiving || c.Kind == fromLiveCache) && l.State != lease.Bound {
				t.Fatalf("a living address is %s: %+v", l.State, c)
			}
			marked := func(o candidate) bool { return o.Address == c.Address && o.Kind == fromHoldFile }
			if c.Kind == fromFile && !adopted && !anyOf(candidates, marked) {
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

// TestDecideReservationNames verifies that a mark keeps its reservation name, that a living pod
// gets the one of its mark, and that living pods of one name do not supersede each other.
func TestDecideReservationNames(t *testing.T) {
	named := func(c *candidate) { c.Reservation = "registry" }
	second := lease.Netns{Path: "/run/netns/second", Dev: 4, Ino: 13}
	found := decide([]candidate{
		shown(fromHoldFile, "10.0.0.5", time.Minute, podNamed("a-1"), uid("u1"), window(time.Hour), firmly(), named,
			ending(20*time.Minute)),
		shown(fromLiveCache, "10.0.0.6", time.Hour, podNamed("a-2"), container("c2"), at(other), window(time.Hour),
			named),
		shown(fromLiveCache, "10.0.0.7", time.Minute, podNamed("a-3"), container("c3"), at(second), window(time.Hour),
			named),
		shown(fromLiveCache, "10.0.0.8", time.Minute, podNamed("a-4"), container("c4"), at(podNetns)),
		shown(fromHoldFile, "10.0.0.8", time.Hour, podNamed("a-4"), uid("u4"), window(time.Hour), firmly(), named,
			ending(20*time.Minute)),
		shown(fromHoldFile, "10.0.0.9", time.Minute, podNamed("b-0"), uid("u5"), window(time.Hour), firmly(),
			ending(20*time.Minute)),
	}, testPool, now, testSoft, ids())
	var got []string
	for _, f := range found {
		got = append(got, story(f)+" for "+f.Lease.Reservation)
	}
	want := []string{
		"10.0.0.5 Held firm 20m0s a-1/u1 eth0 window 1h0m0s for registry",
		"10.0.0.6 Bound a-2 c2 eth0 /run/netns/other window 1h0m0s for registry",
		"10.0.0.7 Bound a-3 c3 eth0 /run/netns/second window 1h0m0s for registry",
		"10.0.0.8 Bound a-4 c4 eth0 /run/netns/db-0 window 1h0m0s for registry",
		"10.0.0.9 Held firm 20m0s b-0/u5 eth0 window 1h0m0s for ",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
