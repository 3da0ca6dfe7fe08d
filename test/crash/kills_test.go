package crash_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// workload is a populated node whose calls are killed at random.
type workload struct {
	*testNode
	killed atomic.Int64
}

// workerPod is a pod of a workload. It is used by one worker only, so that its addresses are known.
type workerPod struct {
	lab.Pod
	sandbox *lab.Sandbox // nil while the pod is stopped
	addr    string       // the address of the last result, or ""
}

// TestRandomKills starts and stops pods by concurrent workers, whose calls are killed at a random
// time with a probability of one half. Like a runtime, a worker repeats DEL after a failure until
// it succeeds.
func TestRandomKills(t *testing.T) {
	const workers, podsEach, pool = 8, 6, 64
	rounds, operations := howMany(2, 10), howMany(200, 1000)
	rng := newRand(t)
	s := &workload{testNode: newTestNode(t, pool, nil)}

	pods := make([][]*workerPod, workers)
	for w := range pods {
		for i := range podsEach {
			pod := lab.NewPod("default", fmt.Sprintf("pod-%d-%d", w, i), []string{"", "10"}[i%2])
			pods[w] = append(pods[w], &workerPod{Pod: pod})
		}
	}
	for round := range rounds {
		var wg sync.WaitGroup
		for w := range workers {
			rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
			wg.Go(func() {
				for range operations / workers {
					s.step(rng, pods[w][rng.IntN(podsEach)])
				}
			})
		}
		wg.Wait()
		s.checkStore()
		s.checkModel()
		for _, p := range s.all(pods) {
			if p.sandbox != nil {
				s.stop(p.sandbox)
				p.sandbox = nil
			}
		}
		s.checkNoLeak()
		s.checkStore()
		for _, p := range s.all(pods) {
			p.addr = "" // its window has expired
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	t.Logf("random kills: %d calls by %d workers in %d rounds, %d of them killed",
		s.calls, workers, rounds, s.killed.Load())
}

func (s *workload) all(pods [][]*workerPod) (all []*workerPod) {
	for _, some := range pods {
		all = append(all, some...)
	}
	return all
}

// step starts a pod that is stopped; of a running pod it repeats the ADD, stops it, or removes its
// sandbox without a DEL.
func (s *workload) step(rng *rand.Rand, p *workerPod) {
	switch {
	case p.sandbox == nil:
		s.begin(rng, p)
	case rng.IntN(10) == 0:
		if addr, ok := s.add(rng, p.sandbox); ok && addr != p.addr {
			s.Errorf("the repeated ADD of %s printed %s, want %s", p.Name, addr, p.addr)
		}
	case rng.IntN(10) == 0:
		s.forget(p.sandbox)
		p.sandbox.Remove()
		p.sandbox = nil
	default:
		s.end(rng, p.sandbox)
		p.sandbox = nil
	}
}

func (s *workload) begin(rng *rand.Rand, p *workerPod) {
	sandbox := s.node.Sandbox(recreated(p.Pod))
	addr, ok := s.add(rng, sandbox)
	if !ok {
		s.end(rng, sandbox)
		return
	}
	if p.Annotations != nil && p.addr != "" && addr != p.addr {
		s.Errorf("%s came back with %s, want %s", p.Name, addr, p.addr) // I2
	}
	p.sandbox, p.addr = sandbox, addr
}

func (s *workload) add(rng *rand.Rand, sandbox *lab.Sandbox) (addr string, ok bool) {
	reply := s.callAndKill(rng, sandbox, "ADD")
	if addrs := addressesOf(reply); reply.Exit == 0 && len(addrs) == 1 {
		return addrs[0], true
	}
	if !wasKilled(reply) && (reply.Err == nil || reply.Err.Code != 11) {
		s.Errorf("ADD of %s: %+v", sandbox.Pod.Name, reply)
	}
	return "", false
}

// end repeats DEL until it succeeds, as a kubelet does, and removes the sandbox.
func (s *workload) end(rng *rand.Rand, sandbox *lab.Sandbox) {
	for {
		reply := s.callAndKill(rng, sandbox, "DEL")
		if reply.Exit == 0 {
			break
		}
		if !wasKilled(reply) {
			s.Errorf("DEL of %s: %+v", sandbox.Pod.Name, reply)
			break
		}
	}
	sandbox.Remove()
}

// callAndKill makes a call and kills it at a random time with a probability of one half.
func (s *workload) callAndKill(rng *rand.Rand, sandbox *lab.Sandbox, verb string) lab.Reply {
	call := sandbox.IPAMCall(s.net, verb)
	if rng.IntN(2) == 0 {
		call.Wrap = []string{"timeout", "--signal=KILL", strconv.FormatFloat(0.0005+0.025*rng.Float64(), 'f', 6, 64)}
	}
	reply := s.track(sandbox, verb, func() lab.Reply { return s.node.Call(call) })
	if wasKilled(reply) {
		s.killed.Add(1)
	}
	return reply
}

// wasKilled reports whether a call was killed: timeout(1) ends by the same signal, or with status
// 128+9.
func wasKilled(reply lab.Reply) bool { return reply.Exit == -1 || reply.Exit == 137 }
