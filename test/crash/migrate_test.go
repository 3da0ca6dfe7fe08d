package crash_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestMigration switches a node between upstream's host-local and leasehold repeatedly, while pods
// run on the bridge and flannel plugins.
func TestMigration(t *testing.T) {
	for name, conf := range map[string]func(c *testNode, ipam lab.Conf) lab.Conf{
		"bridge": func(c *testNode, ipam lab.Conf) lab.Conf { return c.node.Bridge(ipam) },
		// flannel's DEL calls the IPAM plugin of the ADD with the configuration of the ADD
		// (docs/facts.md, "flannel's DEL reads only its scratch file").
		"flannel": func(c *testNode, ipam lab.Conf) lab.Conf {
			return c.node.Flannel(lab.With(ipam, lab.Conf{"ranges": nil}), strings.Replace(c.subnet, "/16", "/24", 1),
				"")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestNode(t, 60, nil)
			main := conf(c, c.net.Main["ipam"].(lab.Conf))
			c.net = c.node.Network("net", "0.4.0", main)
			leasehold := c.net
			hostLocal := c.as(lab.Conf{"type": "host-local"})

			// Pods start with host-local.
			db, kept := lab.NewPod("db", "db-0", "10"), lab.NewPod("db", "db-1", "10")
			first := c.attach(hostLocal, db)
			original := c.has(first)
			running := []*lab.Sandbox{c.attach(hostLocal, kept)}
			for i := range 8 {
				running = append(running, c.attach(hostLocal, lab.NewPod("web", fmt.Sprint("old-", i), "")))
			}
			running[0].Echo()

			// After the switch a pod that was started with host-local gets its address back.
			running = append(running, c.attach(leasehold, lab.NewPod("web", "new", "")))
			c.checkImported("db-0", original)
			c.detach(leasehold, first)
			running = append(running, c.attach(leasehold, lab.NewPod("web", "newer", "")))
			second := c.attach(leasehold, db)
			if got := c.has(second); !slices.Equal(got, original) {
				t.Errorf("db-0 had %v with host-local and came back with %v", original, got)
			}

			// Switch back and forth.
			for turn := range howMany(3, 12) {
				net, other := leasehold, hostLocal
				if turn%2 == 0 {
					net, other = hostLocal, leasehold
				}
				for i := range 3 {
					running = append(running, c.attach(net, lab.NewPod("web", fmt.Sprintf("turn-%d-%d", turn, i), "")))
				}
				c.detach(net, running[1])                // started with either
				c.detach(other, running[len(running)-2]) // by the plugin that is not installed now
				running = slices.Delete(slices.Delete(running, len(running)-2, len(running)-1), 1, 2)
				if err := running[len(running)-1].Ask(c.has(running[0])[0]); err != nil {
					t.Errorf("turn %d: connect to db-1: %v", turn, err)
				}
			}
			for i := range 12 {
				running = append(running, c.attach(leasehold, lab.NewPod("web", fmt.Sprint("last-", i), "")))
			}
			c.node.Check()
			for _, sandbox := range append(running, second) {
				c.detach(leasehold, sandbox)
			}
			if name == "bridge" {
				c.checkNoLeak()
			}
			t.Logf("migration with %s: %d calls, no address twice", name, c.calls)
		})
	}
}

// checkImported checks that the store has the addresses of a pod that host-local assigned.
func (c *testNode) checkImported(pod string, addrs []string) {
	c.Helper()
	var found []string
	for _, l := range c.node.Leases("--state", "bound") {
		if l.Pod == pod {
			found = append(found, l.Address)
		}
	}
	if !slices.Equal(found, addrs) {
		c.Errorf("the store has %v for %s, want %v", found, pod, addrs)
	}
}

// TestMixedCalls calls leasehold and upstream's host-local at random with the same directory.
func TestMixedCalls(t *testing.T) {
	const pods = 24
	rng := lab.Rand(t)
	c := newTestNode(t, 40, nil)
	hostLocal := c.as(lab.Conf{"type": "host-local"})
	sandboxes := make([]*lab.Sandbox, pods)
	served := map[string]int{}
	for range howMany(500, 3000) {
		i, net := rng.IntN(pods), c.net
		if rng.IntN(2) == 0 {
			net = hostLocal
		}
		who := net.Main["ipam"].(lab.Conf)["type"].(string)
		served[who]++
		sandbox := sandboxes[i]
		if sandbox != nil {
			reply := c.track(sandbox, "DEL", func() lab.Reply { return sandbox.Call(net, "DEL") })
			if reply.Exit != 0 {
				t.Errorf("%s, DEL of %s: %+v", who, sandbox.Pod.Name, reply)
			}
			sandbox.RemoveKeepingInode()
			sandboxes[i] = nil
			continue
		}
		sandbox = c.node.Sandbox(lab.NewPod("default", fmt.Sprint("pod-", i), []string{"", "1"}[i%2]))
		reply := c.track(sandbox, "ADD", func() lab.Reply { return sandbox.Call(net, "ADD") })
		if reply.Exit != 0 && who == "host-local" {
			// host-local cannot assign addresses that are held: leasehold serves this pod.
			c.node.Clock += 2 * time.Minute
			reply = c.call(sandbox, "ADD")
		}
		if reply.Exit != 0 {
			t.Fatalf("%s, ADD of %s: %+v\n%s", who, sandbox.Pod.Name, reply, c.list("--all"))
		}
		sandboxes[i] = sandbox
		if t.Failed() {
			t.FailNow()
		}
	}
	c.mustAdd(c.node.Sandbox(lab.NewPod("default", "last", "")))
	c.node.Check()
	for i, sandbox := range sandboxes {
		if sandbox != nil {
			net := []*lab.Network{c.net, hostLocal}[i%2]
			if reply := c.track(sandbox, "DEL", func() lab.Reply { return sandbox.Call(net, "DEL") }); reply.Exit != 0 {
				t.Errorf("DEL: %+v", reply)
			}
			sandbox.Remove()
		}
	}
	c.checkNoLeak()
	c.node.Check()
	t.Logf("mixed calls: %d, of which %v; no address twice, none leaked", c.calls, served)
}
