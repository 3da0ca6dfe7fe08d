package explore

import (
	"os"
	"runtime"
	"testing"
)

const twoAddresses = "10.0.0.0/24 10.0.0.2-10.0.0.3"

// worlds are the worlds that are gone through. The short form bounds each.
var worlds = []config{
	{
		name:  "windows",
		about: "two pods that ask for a window, two sandboxes each, two addresses, a reboot, host-local, a kill anywhere",
		pods:  []podConfig{{window: window}, {window: window}}, lives: 2,
		nets: []netConfig{{name: "net", sets: []string{twoAddresses}}},
		with: map[kind]int{
			add: always, del: always, lateAdd: always, end: always, pass: always, agent: always, reboot: 1, hostAdd: 1, hostDel: 1,
		},
		kills: 1, probe: rebootProbe,
		limits: limits{depth: 4},
	},
}

func isLong() bool { return os.Getenv("LONG") != "" }

func TestWorlds(t *testing.T) {
	t.Log(heading)
	for _, c := range worlds {
		t.Run(c.name, func(t *testing.T) {
			workers := 1
			if isLong() {
				c.limits, workers = limits{}, runtime.NumCPU()
			}
			s := newSearch(t, c, workers)
			s.run()
			t.Log("\n" + s.row())
			if s.failure != nil {
				t.Error(s.story())
			}
		})
	}
}
