package crash_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestMigration switches a node from upstream's host-local to leasehold and back and so on, with pods running on the real
// bridge and flannel plugins all the time.
func TestMigration(t *testing.T) {
	for name, conf := range map[string]func(c *crowd, ipam lab.Conf) lab.Conf{
		"bridge": func(c *crowd, ipam lab.Conf) lab.Conf { return c.node.Bridge(ipam) },
		// flannel replays what it was told at ADD to whatever binary that was (FACTS 6.4).
		"flannel": func(c *crowd, ipam lab.Conf) lab.Conf {
			return c.node.Flannel(lab.With(ipam, lab.Conf{"ranges": nil}), strings.Replace(c.subnet, "/16", "/24", 1), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, 60, nil)
			main := conf(c, c.net.Main["ipam"].(lab.Conf))
			c.net = c.node.Network("net", "0.4.0", main)
			ours := c.net
			theirs := c.as(lab.Conf{"type": "host-local"})

			// A year of host-local.
			db, kept := lab.NewPod("db", "db-0", "10"), lab.NewPod("db", "db-1", "10")
			first := c.attach(theirs, db)
			home := c.has(first)
			running := []*lab.Sandbox{c.attach(theirs, kept)}
			for i := range 8 {
				running = append(running, c.attach(theirs, lab.NewPod("web", fmt.Sprint("old-", i), "")))
			}
			running[0].Echo()

			// The switch. A pod that host-local started comes back under ours to the address that it had.
			running = append(running, c.attach(ours, lab.NewPod("web", "new", "")))
			c.agreesWith("db-0", home)
			c.detach(ours, first)
			running = append(running, c.attach(ours, lab.NewPod("web", "newer", "")))
			second := c.attach(ours, db)
			if got := c.has(second); !slices.Equal(got, home) {
				t.Errorf("db-0 had %v under host-local and comes back with %v", home, got)
			}

			// There and back again.
			for turn := range howMany(3, 12) {
				net, other := ours, theirs
				if turn%2 == 0 {
					net, other = theirs, ours
				}
				for i := range 3 {
					running = append(running, c.attach(net, lab.NewPod("web", fmt.Sprintf("turn-%d-%d", turn, i), "")))
				}
				c.detach(net, running[1])                // whoever has started it
				c.detach(other, running[len(running)-2]) // and whoever does not run now
				running = slices.Delete(slices.Delete(running, len(running)-2, len(running)-1), 1, 2)
				if err := running[len(running)-1].Ask(c.has(running[0])[0]); err != nil {
					t.Errorf("turn %d: db-1 is not heard of: %v", turn, err)
				}
			}
			for i := range 12 {
				running = append(running, c.attach(ours, lab.NewPod("web", fmt.Sprint("last-", i), "")))
			}
			c.sound()
			for _, box := range append(running, second) {
				c.detach(ours, box)
			}
			if name == "bridge" {
				c.everyAddress()
			}
			t.Logf("migration under %s: %d calls, no address twice", name, c.calls)
		})
	}
}

// agreesWith tells whether the store knows a pod by the addresses that somebody else gave it.
func (c *crowd) agreesWith(pod string, addrs []string) {
	c.Helper()
	var found []string
	for _, l := range c.node.Leases("--state", "bound") {
		if l.Pod == pod {
			found = append(found, l.Address)
		}
	}
	if !slices.Equal(found, addrs) {
		c.Errorf("the store knows %s by %v, want %v", pod, found, addrs)
	}
}

// TestDealtCalls deals calls at random to leasehold and upstream's host-local over one directory.
func TestDealtCalls(t *testing.T) {
	const pods = 24
	rng := dice(t)
	c := newCrowd(t, 40, nil)
	theirs := c.as(lab.Conf{"type": "host-local"})
	boxes, former := make([]*lab.Sandbox, pods), make([]*lab.Sandbox, pods)
	served := map[string]int{}
	for range howMany(500, 3000) {
		i, net := rng.IntN(pods), c.net
		if rng.IntN(2) == 0 {
			net = theirs
		}
		who := net.Main["ipam"].(lab.Conf)["type"].(string)
		served[who]++
		box := boxes[i]
		if box != nil {
			reply := c.told(box, "DEL", func() lab.Reply { return box.Call(net, "DEL") })
			if reply.Exit != 0 {
				t.Errorf("%s, DEL of %s: %+v", who, box.Pod.Name, reply)
			}
			box.Remove()
			boxes[i], former[i] = nil, box
			continue
		}
		box = c.node.Sandbox(lab.NewPod("default", fmt.Sprint("pod-", i), []string{"", "1"}[i%2]))
		reply := c.told(box, "ADD", func() lab.Reply { return box.Call(net, "ADD") })
		if reply.Exit != 0 && who == "host-local" {
			// It cannot take back what we hold: we serve this one.
			c.node.Clock += 2 * time.Minute
			reply = c.call(box, "ADD")
		}
		if reply.Exit != 0 && strings.Contains(reply.Err.Msg, "former sandbox") && former[i] != nil && former[i].Reissued() {
			t.Logf("the number of %s's last namespace belongs to a stranger", box.Pod.Name)
			c.told(box, "DEL", func() lab.Reply { return box.Call(net, "DEL") })
			box.Remove()
			continue
		}
		if reply.Exit != 0 {
			t.Fatalf("%s, ADD of %s: %+v\n%s", who, box.Pod.Name, reply, c.list("--all"))
		}
		boxes[i] = box
		if t.Failed() {
			t.FailNow()
		}
	}
	c.mustAdd(c.node.Sandbox(lab.NewPod("default", "last", "")))
	c.sound()
	for i, box := range boxes {
		if box != nil {
			net := []*lab.Network{c.net, theirs}[i%2]
			if reply := c.told(box, "DEL", func() lab.Reply { return box.Call(net, "DEL") }); reply.Exit != 0 {
				t.Errorf("DEL: %+v", reply)
			}
			box.Remove()
		}
	}
	c.everyAddress()
	c.sound()
	t.Logf("dealt calls: %d, of which %v; no address twice, none lost", c.calls, served)
}
