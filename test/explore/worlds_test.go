package explore

import (
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	oneAddress   = "10.0.0.0/24 10.0.0.2-10.0.0.2"
	twoAddresses = "10.0.0.0/24 10.0.0.2-10.0.0.3"
	two6         = "fd00::/64 fd00::2-fd00::3"
	one6         = "fd00::/64 fd00::2-fd00::2"
)

var (
	asks          = podConfig{window: window}
	plain         = podConfig{}
	untold        = podConfig{window: window, untold: true}
	oneNet        = []netConfig{{name: "net", sets: []string{twoAddresses}}}
	oneAddressNet = []netConfig{{name: "net", sets: []string{oneAddress}}}
	twoNets       = []netConfig{{name: "one", sets: []string{oneAddress}}, {name: "two", sets: []string{oneAddress}}}
)

// everyVerb are the events of every world, and what a world has beside them.
func everyVerb(more map[kind]int) map[kind]int {
	out := map[kind]int{add: always, del: always, lateAdd: always, end: always, pass: always, agent: always}
	maps.Copy(out, more)
	return out
}

// worlds are the worlds that are gone through. short is how deep the short form goes; the long one
// has no bound.
var worlds = []config{
	{
		name: "one life", about: "one sandbox each of two pods, a kill and a reboot: small enough for every state",
		pods: []podConfig{asks, plain}, lives: 1, known: true, nets: oneNet,
		with:  everyVerb(map[kind]int{reboot: 1, gc: always}),
		kills: 1, short: 4,
	},
	{
		name: "windows", about: "two pods that ask for a window, two sandboxes each, two addresses, a reboot",
		pods: []podConfig{asks, asks}, lives: 2, known: true, nets: oneNet,
		with: everyVerb(map[kind]int{reboot: 1, long: always, gc: always}), short: 5,
	},
	{
		name: "kills", about: "the same, and a call is killed before any of its file operations",
		pods: []podConfig{asks, asks}, lives: 2, known: true, nets: oneNet,
		with: everyVerb(map[kind]int{reboot: 1}), kills: 1, short: 4,
	},
	{
		name: "one pod", about: "a pod that asks for no window, one address, more kills and reboots",
		pods: []podConfig{plain}, lives: 2, known: true, nets: oneAddressNet,
		with: everyVerb(map[kind]int{reboot: 2, hide: 1, unplug: 1, gc: always, check: always}), kills: 2, short: 4,
	},
	{
		name: "host-local", about: "the same, and host-local serves some calls",
		pods: []podConfig{asks, asks}, lives: 2, nets: oneNet,
		with:  everyVerb(map[kind]int{reboot: 1, hostAdd: 1, hostDel: 1}),
		kills: 1, probe: rebootProbe, short: 3,
	},
	{
		name: "two sets", about: "two range sets of which one is full before the other",
		pods: []podConfig{asks, plain}, lives: 2, known: true,
		nets: []netConfig{{name: "net", sets: []string{two6, oneAddress}}},
		with: everyVerb(map[kind]int{reboot: 1}), kills: 1, short: 3,
	},
	{
		name: "two networks", about: "two networks of which one is locked by somebody for any time",
		pods: []podConfig{{net: 0, window: window}, {net: 1, window: window}}, lives: 2, known: true, nets: twoNets,
		with: everyVerb(map[kind]int{lock: 1, unlock: always, reboot: 1}), short: 4,
	},
	{
		name: "lost", about: "wiped directories, old snapshots, a lost store",
		pods: []podConfig{asks, plain}, lives: 2, nets: oneNet,
		with:  everyVerb(map[kind]int{snapshot: 2, lose: 1, wipe: 1, wipePlain: 1, reboot: 1}),
		probe: rebootProbe, short: 4,
	},
	{
		name: "one loss", about: "one address, a lost store and a wiped directory: small enough for every state",
		pods: []podConfig{asks, plain}, lives: 1, known: true, nets: oneAddressNet,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 2, lose: 1, wipe: 1, reboot: 1,
		},
		probe: rebootProbe, short: 4,
	},
	{
		name: "old snapshot", about: "one address, a snapshot at any time, and then a wiped directory or a lost store",
		pods: []podConfig{plain, plain}, lives: 1, nets: oneAddressNet, known: true,
		with: map[kind]int{
			add: always, del: always, end: always, hide: 1, pass: 1, snapshot: 1, lose: 1, wipe: 1,
		},
		probe: rebootProbe, short: 5,
	},
	{
		name: "power cut", about: "a power cut after which any part of the files that are never synced is there",
		pods: []podConfig{asks, plain}, lives: 2, nets: oneNet,
		with:  everyVerb(map[kind]int{powerCut: 1}),
		probe: rebootProbe, short: 4,
	},
	{
		name: "clocks", about: "the wall clock is set forward and back, is at 1970 after a boot; a suspend",
		pods: []podConfig{asks, plain}, lives: 2, known: true, nets: oneNet,
		with:  everyVerb(map[kind]int{forward: 2, back: 2, correct: 2, rebootEpoch: 1, reboot: 1, long: always}),
		short: 4,
	},
	{
		name: "one clock", about: "a pod that asks for a window, its clock is wrong once: small enough for every state",
		pods: []podConfig{asks}, lives: 2, known: true, nets: oneAddressNet,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 3, forward: 1, back: 1, reboot: 1,
		},
		short: 4,
	},
	{
		name: "namespaces", about: "three pods, namespaces that live on unmounted, interfaces that are unplugged",
		pods: []podConfig{asks, plain, plain}, lives: 2, known: true, nets: oneNet,
		with: everyVerb(map[kind]int{hide: 2, unplug: 2}), short: 4,
	},
	{
		name: "one address less", about: "of two addresses one is taken off the interface, and the pod comes back",
		pods: []podConfig{asks}, lives: 3, known: true,
		nets:  []netConfig{{name: "net", sets: []string{two6, twoAddresses}}},
		with:  map[kind]int{add: always, del: always, stop: always, pass: always, unplugOne: 1},
		short: 5,
	},
	{
		name: "shared clock", about: "host-local serves calls, and the wall clock is set back in one boot",
		pods: []podConfig{plain, plain, plain}, lives: 1, nets: oneAddressNet,
		with: map[kind]int{
			add: always, del: always, end: always, hostAdd: 1, hostDel: 1, back: 1, correct: 1,
		},
		probe: rebootProbe, short: 4,
	},
	{
		name: "same id", about: "containers that are started again keep their ids; host-local serves some calls",
		pods: []podConfig{plain, plain}, lives: 1, known: true, nets: oneAddressNet,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 1, agent: always, again: 1, hostAdd: 1, hostDel: 1,
		},
		probe: rebootProbe, short: 4,
	},
	{
		name: "untold", about: "the agent alone sees the annotation of a pod",
		pods: []podConfig{untold, plain}, lives: 2, known: true, nets: oneAddressNet,
		with:  map[kind]int{add: always, stop: always, end: always, pass: always, long: 1, agent: always, reboot: 1},
		short: 4,
	},
	{
		name: "share", about: "no more than one of two addresses is held for pods that are away",
		pods: []podConfig{asks, asks}, lives: 2, known: true, nets: oneNet, share: 0.5,
		with: everyVerb(map[kind]int{gc: always, reboot: 1}), short: 4,
	},
	{
		name: "lost files", about: "somebody removes a file of host-local's, and the store is lost",
		pods: []podConfig{asks, plain, plain}, lives: 1, known: true, nets: oneNet,
		with:  map[kind]int{add: always, stop: always, end: always, pass: 1, wipeOne: 1, lose: 1},
		probe: rebootProbe, short: 4,
	},
}

// form bounds a search. The short form goes to a depth, with one processor; the long one has both,
// and no bound but the time that LIMIT gives to each world.
func form(t *testing.T, c *config) (workers int) {
	if os.Getenv("LONG") == "" {
		c.limits.depth = c.short
		if text := os.Getenv("DEPTH"); text != "" {
			var err error
			if c.limits.depth, err = strconv.Atoi(text); err != nil {
				t.Fatal(err)
			}
		}
		return 1
	}
	if text := os.Getenv("LIMIT"); text != "" {
		var err error
		if c.limits.time, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	return runtime.NumCPU()
}

func TestWorlds(t *testing.T) {
	rows := []string{heading}
	for _, c := range worlds {
		t.Run(c.name, func(t *testing.T) {
			s := newSearch(t, c, form(t, &c))
			s.progress = func(row string) { t.Log(row) }
			s.run()
			rows = append(rows, s.row())
			if s.failure != nil {
				t.Error(s.story())
			}
		})
	}
	t.Log("\n" + strings.Join(rows, "\n"))
}

// TestMoreEventsMakeMoreStates: an event that is added is one that happens.
func TestMoreEventsMakeMoreStates(t *testing.T) {
	c := config{
		name: "few events", pods: []podConfig{asks}, lives: 1, nets: oneNet, known: true,
		with:   map[kind]int{add: always, del: always, end: always},
		limits: limits{depth: 3},
	}
	former := 0
	more := []kind{add, pass, reboot, agent, hide, forward, snapshot, wipe, lose, hostAdd, hostDel, powerCut}
	for _, k := range more {
		c.with[k] = max(c.with[k], 1)
		c.probe = rebootProbe
		s := newSearch(t, c, 1)
		s.run()
		if s.failure != nil {
			t.Fatal(s.story())
		}
		if len(s.reached) <= former {
			t.Errorf("with %q there are %d states, and %d without it", k, len(s.reached), former)
		}
		former = len(s.reached)
	}
}
