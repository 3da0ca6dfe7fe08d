package explore

import (
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	oneAddress   = "10.0.0.0/24 10.0.0.2-10.0.0.2"
	twoAddresses = "10.0.0.0/24 10.0.0.2-10.0.0.3"
	two6         = "fd00::/64 fd00::2-fd00::3"
)

var (
	retained  = podConfig{window: window}
	plain     = podConfig{}
	agentOnly = podConfig{window: window, agentOnly: true}
	named     = podConfig{window: window, reserveAs: "name"}
	lateNamed = podConfig{window: window, reserveAs: "name", agentOnly: true}
	one       = []string{oneAddress}
	two       = []string{twoAddresses}
	four      = []string{"10.0.0.0/24 10.0.0.2-10.0.0.5"}
)

// withCommon returns the events of most models, and more.
func withCommon(more map[kind]int) map[kind]int {
	out := map[kind]int{add: always, del: always, lateAdd: always, end: always, pass: always, agent: always}
	maps.Copy(out, more)
	return out
}

// models are the models that are searched. The short form goes to the depth short; the long one has
// no bound.
var models = []config{
	{
		name: "one sandbox", about: "one sandbox each of two pods, a kill and a reboot: small enough for every state",
		pods: []podConfig{retained, plain}, perPod: 1, known: true, sets: two,
		with:  withCommon(map[kind]int{reboot: 1, gc: always}),
		kills: 1, short: 4,
	},
	{
		name: "windows", about: "two pods with a window, two sandboxes each, two addresses, a reboot",
		pods: []podConfig{retained, retained}, perPod: 2, known: true, sets: two,
		with: withCommon(map[kind]int{reboot: 1, long: always, gc: always}), short: 5,
	},
	{
		name: "kills", about: "the same, and a call is killed before any of its file operations",
		pods: []podConfig{retained, retained}, perPod: 2, known: true, sets: two,
		with: withCommon(map[kind]int{reboot: 1}), kills: 1, short: 4,
	},
	{
		name: "one pod", about: "a pod without a window, one address, more kills and reboots",
		pods: []podConfig{plain}, perPod: 2, known: true, sets: one,
		with: withCommon(map[kind]int{reboot: 2, hide: 1, unplug: 1, gc: always, check: always}), kills: 2, short: 4,
	},
	{
		name: "host-local", about: "the same, and host-local serves some calls",
		pods: []podConfig{retained, retained}, perPod: 2, sets: two,
		with:  withCommon(map[kind]int{reboot: 1, hostAdd: 1, hostReady: always, hostDel: 1}),
		kills: 1, short: 3,
	},
	{
		name: "imported", about: "host-local has served calls before leasehold was named, and serves the DELs of these",
		pods: []podConfig{agentOnly, retained}, perPod: 2, sets: two, imports: true,
		with: map[kind]int{
			add: always, del: always, stop: always, end: always, pass: always, agent: always, hostAdd: 2,
			hostReady: always, hostDel: 2, reboot: 1,
		},
		kills: 1, short: 3,
	},
	{
		name: "two sets", about: "two range sets of which one is full before the other",
		pods: []podConfig{retained, plain}, perPod: 2, known: true,
		sets: []string{two6, oneAddress},
		with: withCommon(map[kind]int{reboot: 1}), kills: 1, short: 3,
	},
	{
		name: "lost", about: "wiped directories, a lost store",
		pods: []podConfig{retained, plain}, perPod: 2, sets: two,
		with:  withCommon(map[kind]int{lose: 1, wipe: 1, wipePlain: 1, reboot: 1}),
		short: 4,
	},
	{
		name: "one loss", about: "one address, a lost store and a wiped directory: small enough for every state",
		pods: []podConfig{retained, plain}, perPod: 1, known: true, sets: one,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 2, lose: 1, wipe: 1, reboot: 1,
		},
		short: 4,
	},
	{
		name: "power cut", about: "a power cut after which any part of the files that are never synced is there",
		pods: []podConfig{retained, plain}, perPod: 2, sets: two,
		with:  withCommon(map[kind]int{powerCut: 1}),
		short: 4,
	},
	{
		name: "clocks", about: "the wall clock is set forward and back, is at 1970 after a boot; a suspend",
		pods: []podConfig{retained, plain}, perPod: 2, known: true, sets: two,
		with:  withCommon(map[kind]int{forward: 2, back: 2, correct: 2, rebootEpoch: 1, reboot: 1, long: always}),
		short: 4,
	},
	{
		name: "one clock", about: "a pod with a window, its clock is wrong once: small enough for every state",
		pods: []podConfig{retained}, perPod: 2, known: true, sets: one,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 3, forward: 1, back: 1, reboot: 1,
		},
		short: 4,
	},
	{
		name: "namespaces", about: "three pods, namespaces that outlive their mount, interfaces that are unplugged",
		pods: []podConfig{retained, plain, plain}, perPod: 2, known: true, sets: two,
		with: withCommon(map[kind]int{hide: 2, unplug: 2}), short: 4,
	},
	{
		name: "one address less", about: "of two addresses one is taken off the interface, and the pod comes back",
		pods: []podConfig{retained}, perPod: 3, known: true,
		sets:  []string{two6, twoAddresses},
		with:  map[kind]int{add: always, del: always, stop: always, pass: always, unplugOne: 1},
		short: 5,
	},
	{
		name: "shared clock", about: "host-local serves calls, and the wall clock is set back in one boot",
		pods: []podConfig{plain, plain, plain}, perPod: 1, sets: one,
		with: map[kind]int{
			add: always, del: always, end: always, hostAdd: 1, hostReady: always, hostDel: 1, back: 1, correct: 1,
		},
		short: 4,
	},
	{
		name: "same id", about: "containers that are started again keep their ids; host-local serves some calls",
		pods: []podConfig{plain, plain}, perPod: 1, known: true, sets: one,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 1, agent: always, again: 1, hostAdd: 1,
			hostReady: always, hostDel: 1,
		},
		short: 4,
	},
	{
		name: "agent only", about: "only the agent sees the annotation of a pod",
		pods: []podConfig{agentOnly, plain}, perPod: 2, known: true, sets: one,
		with:  map[kind]int{add: always, stop: always, end: always, pass: always, long: 1, agent: always, reboot: 1},
		short: 4,
	},
	{
		name: "names", about: "pods that share a reservation name; some are being deleted while others start",
		pods: []podConfig{named}, perPod: 4, known: true, sets: two,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 2, agent: always, leave: 2, unplug: 1, reboot: 1,
		},
		short: 5,
	},
	{
		name: "one name", about: "three pods that share a reservation name: small enough for every state",
		pods: []podConfig{named}, perPod: 3, known: true, sets: one,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 1, agent: always, leave: 1,
		},
		short: 5,
	},
	{
		name: "names and pods", about: "pods that share a reservation name, and a pod without one, two addresses",
		pods: []podConfig{named, plain}, perPod: 2, known: true, sets: two,
		with:  withCommon(map[kind]int{gc: always, reboot: 1, hide: 1}),
		short: 4,
	},
	{
		name: "late names", about: "only the agent sees the reservation name, before the sandbox is created or later",
		pods: []podConfig{lateNamed}, perPod: 3, known: true, sets: two,
		with: map[kind]int{
			add: always, del: always, end: always, pass: 2, agent: always, nameFirst: always, leave: 1, reboot: 1,
		},
		short: 5,
	},
	{
		name: "first call", about: "a boot whose first call is a DEL, a GC or the agent's; short cool-downs",
		pods: []podConfig{{oneUID: true}, plain}, perPod: 2, known: true, sets: four, coolDown: 9 * time.Minute,
		with: map[kind]int{
			add: always, del: always, end: always, gc: always, agent: always, reboot: 1, wait: 1,
		},
		short: 4,
	},
	{
		name: "shares", about: "a limit that permits one hold, and a boot, which begins any number",
		pods: []podConfig{retained, retained}, perPod: 2, known: true, sets: four, share: 0.25,
		with: map[kind]int{
			add: always, del: always, end: always, gc: always, agent: always, reboot: 1,
		},
		short: 4,
	},
	{
		name: "lost sets", about: "two range sets, a lost store, and a kill",
		pods: []podConfig{retained, plain}, perPod: 2, known: true, sets: []string{two6, twoAddresses},
		with:  map[kind]int{add: always, stop: always, end: always, agent: always, lose: 1, reboot: 1},
		kills: 1, short: 3,
	},
	{
		name: "lost names", about: "pods that share a reservation name, a lost store, and a kill",
		pods: []podConfig{named}, perPod: 4, known: true, sets: two,
		with:  map[kind]int{add: always, stop: always, end: always, pass: 1, lose: 1},
		kills: 1, short: 4,
	},
	{
		name: "restarted", about: "containers are started again after a boot, with their ids; host-local serves calls",
		pods: []podConfig{plain, plain}, perPod: 1, known: true, sets: two,
		with: map[kind]int{
			add: always, del: always, end: always, agent: always, gc: always, restart: 1, reboot: 1, hostAdd: 1,
			hostReady: always, hostDel: 1,
		},
		short: 4,
	},
	{
		name: "restarted cut", about: "the same after a power cut",
		pods: []podConfig{plain, plain}, perPod: 1, known: true, sets: one,
		with: map[kind]int{
			add: always, del: always, restart: 1, powerCut: 1, hostAdd: 1, hostReady: always, hostDel: 1,
		},
		short: 5,
	},
	{
		name: "late import", about: "a pod of host-local dies without a DEL, and leasehold sees its file later",
		pods: []podConfig{retained, plain}, perPod: 3, known: true, sets: two, imports: true,
		with: map[kind]int{
			add: always, stop: always, end: 1, agent: 1, hostAdd: 1, hostReady: always,
		},
		short: 4,
	},
	{
		name: "removed", about: "host-local's directory is removed, the store is intact, and former entries are left",
		pods: []podConfig{retained, plain}, perPod: 3, known: true, sets: two, imports: true,
		with: map[kind]int{
			add: always, stop: always, end: 1, wipe: 1, hostAdd: 1, hostReady: always,
		},
		short: 5,
	},
	{
		name: "lost files", about: "a file of host-local's is removed, and the store is lost",
		pods: []podConfig{retained, plain, plain}, perPod: 1, known: true, sets: two,
		with:  map[kind]int{add: always, stop: always, end: always, pass: 1, wipeOne: 1, lose: 1},
		short: 4,
	},
}

// bound limits a search. The short form goes to a depth; the long one has no limit but LIMIT, a
// duration for each model.
func bound(t *testing.T, c *config) {
	if os.Getenv("LONG") == "" {
		c.limits.depth = c.short
		return
	}
	if text := os.Getenv("LIMIT"); text != "" {
		var err error
		if c.limits.time, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
}

func TestModels(t *testing.T) {
	var mu sync.Mutex
	rows := []string{heading}
	t.Run("models", func(t *testing.T) { // which ends when all of them have ended
		for _, c := range models {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				bound(t, &c)
				s := newSearch(t, c)
				s.progress = func(row string) { t.Log(row) }
				s.run()
				mu.Lock()
				defer mu.Unlock()
				rows = append(rows, s.row())
				if s.failure != nil {
					t.Error(s.counterExample())
				}
			})
		}
	})
	t.Log("\n" + strings.Join(rows, "\n"))
}

// TestMoreEventsMakeMoreStates shows that each event happens.
func TestMoreEventsMakeMoreStates(t *testing.T) {
	c := config{
		name: "few events", pods: []podConfig{retained}, perPod: 1, sets: two, known: true,
		with:   map[kind]int{add: always, del: always, end: always},
		limits: limits{depth: 3},
	}
	previous := 0
	more := []kind{add, pass, reboot, agent, hide, forward, wipe, lose, hostAdd, hostReady, hostDel, restart, powerCut}
	for _, k := range more {
		c.with[k] = max(c.with[k], 1)
		s := newSearch(t, c)
		s.run()
		if s.failure != nil {
			t.Fatal(s.counterExample())
		}
		if len(s.reached) <= previous {
			t.Errorf("with %q there are %d states, and %d without it", k, len(s.reached), previous)
		}
		previous = len(s.reached)
	}
}
