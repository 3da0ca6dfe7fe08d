package crash_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestMixedCalls calls leasehold and upstream's host-local at random with the same directory.
func TestMixedCalls(t *testing.T) {
	const pods = 24
	rng := lab.Rand(t)
	c := newTestNode(t, 40)
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
			check.Equal(t, reply.Exit, 0, who, "DEL of", sandbox.Pod.Name, reply)
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
