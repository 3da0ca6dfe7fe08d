package crash_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestRandomKills starts and stops pods by concurrent workers, whose calls are killed at a random
// time with a probability of one half. Like a runtime, a worker repeats DEL after a failure until
// it succeeds.
func TestRandomKills(t *testing.T) {
	const workers, podsEach, pool = 8, 6, 64
	type pod struct { // of one worker
		lab.Pod
		sandbox *lab.Sandbox // nil while it is stopped
		addr    string       // of the last result, or ""
	}
	rng := lab.Rand(t)
	c := newTestNode(t, pool)
	var killed atomic.Int64
	call := func(rng *rand.Rand, p *pod, verb string) lab.Reply {
		call := p.sandbox.IPAMCall(c.net, verb)
		if rng.IntN(2) == 0 {
			call.Wrap = []string{"timeout", "--signal=KILL", fmt.Sprintf("%.6f", 0.0005+0.025*rng.Float64())}
		}
		reply := c.track(p.sandbox, verb, func() lab.Reply { return c.node.Call(call) })
		if wasKilled(reply) {
			killed.Add(1)
		} else if reply.Exit != 0 && (verb == "DEL" || reply.Err == nil || reply.Err.Code != 11) {
			c.Errorf("%s of %s: %+v", verb, p.Name, reply)
		}
		return reply
	}
	remove := func(p *pod) { p.sandbox.Remove(); p.sandbox = nil }
	stop := func(rng *rand.Rand, p *pod) {
		for call(rng, p, "DEL").Exit != 0 && !t.Failed() {
		}
		remove(p)
	}
	// step starts a pod that is stopped; of a running pod it repeats the ADD, stops it, or removes
	// its sandbox without a DEL.
	step := func(rng *rand.Rand, p *pod) {
		chance, runs := rng.IntN(10), p.sandbox != nil
		switch {
		case runs && chance == 0:
			c.forget(p.sandbox)
			remove(p)
		case runs && chance > 1:
			stop(rng, p)
		default:
			if !runs {
				p.sandbox = c.node.Sandbox(p.Pod.Recreated())
			}
			switch reply := call(rng, p, "ADD"); {
			case reply.Exit != 0 && !runs:
				stop(rng, p)
			case reply.Exit != 0:
			case p.addr != "" && (runs || p.Annotations != nil) && reply.Addresses()[0] != p.addr:
				c.Errorf("%s got %v, want %s", p.Name, reply.Addresses(), p.addr) // I2, I4
			default:
				p.addr = reply.Addresses()[0]
			}
		}
	}
	var pods []*pod
	for i := range workers * podsEach {
		pods = append(pods, &pod{Pod: lab.NewPod("default", fmt.Sprint("pod-", i), []string{"", "10"}[i%2])})
	}
	for round := range howMany(2, 10) {
		var wg sync.WaitGroup
		for w := range workers {
			rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
			wg.Go(func() {
				for range howMany(200, 1000) / workers {
					step(rng, pods[w*podsEach+rng.IntN(podsEach)])
				}
			})
		}
		wg.Wait()
		c.node.Check()
		c.checkModel()
		for _, p := range pods {
			if p.addr = ""; p.sandbox != nil { // its window will be over
				c.stop(p.sandbox)
				p.sandbox = nil
			}
		}
		c.checkNoLeak()
		c.node.Check()
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	t.Logf("random kills: %d calls by %d workers, %d of them killed", c.calls, workers, killed.Load())
}

// wasKilled reports whether a call was killed: timeout(1) ends by the same signal, or with status
// 128+9.
func wasKilled(reply lab.Reply) bool { return reply.Exit == -1 || reply.Exit == 137 }
