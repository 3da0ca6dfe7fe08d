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

// A storm is a crowd whose calls are killed at random.
type storm struct {
	*crowd
	killed atomic.Int64
}

// One pod of the storm. Only one worker has it, so that each knows what its pods were told.
type one struct {
	lab.Pod
	box  *lab.Sandbox // nil while it is down
	addr string       // that it was told last, "" for never
}

// TestKillStorm lets workers start and stop pods as fast as they can, while half of their calls are killed somewhere. The
// workers do what a runtime does: what failed gets a DEL, until a DEL succeeds.
func TestKillStorm(t *testing.T) {
	const workers, podsEach, pool = 8, 6, 64
	rounds, operations := howMany(2, 10), howMany(200, 1000)
	rng := dice(t)
	s := &storm{crowd: newCrowd(t, pool, nil)}

	pods := make([][]*one, workers)
	for w := range pods {
		for i := range podsEach {
			pods[w] = append(pods[w], &one{Pod: lab.NewPod("default", fmt.Sprintf("pod-%d-%d", w, i), []string{"", "10"}[i%2])})
		}
	}
	for round := range rounds {
		var wg sync.WaitGroup
		for w := range workers {
			dice := rand.New(rand.NewPCG(rng.Uint64(), 0))
			wg.Go(func() {
				for range operations / workers {
					s.step(dice, pods[w][dice.IntN(podsEach)])
				}
			})
		}
		wg.Wait()
		s.sound()
		s.agrees()
		for _, p := range s.all(pods) {
			if p.box != nil {
				s.stop(p.box)
				p.box = nil
			}
		}
		s.everyAddress()
		s.sound()
		for _, p := range s.all(pods) {
			p.addr = "" // its window is over
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	t.Logf("kill storm: %d operations by %d workers in %d rounds, %d of them killed, no violation", s.calls, workers, rounds, s.killed.Load())
}

func (s *storm) all(pods [][]*one) (all []*one) {
	for _, some := range pods {
		all = append(all, some...)
	}
	return all
}

// step starts a pod that is down; of one that runs it asks again, ends it, or takes its sandbox away without a word.
func (s *storm) step(dice *rand.Rand, p *one) {
	switch {
	case p.box == nil:
		s.begin(dice, p)
	case dice.IntN(10) == 0:
		if addr, ok := s.add(dice, p.box); ok && addr != p.addr {
			s.Errorf("%s asked again and got %s instead of %s", p.Name, addr, p.addr)
		}
	case dice.IntN(10) == 0:
		s.forget(p.box)
		p.box.Remove()
		p.box = nil
	default:
		s.end(dice, p.box)
		p.box = nil
	}
}

func (s *storm) begin(dice *rand.Rand, p *one) {
	box := s.node.Sandbox(again(p.Pod))
	addr, ok := s.add(dice, box)
	if !ok {
		s.end(dice, box)
		return
	}
	if p.Annotations != nil && p.addr != "" && addr != p.addr {
		s.Errorf("%s came back with %s instead of %s", p.Name, addr, p.addr) // I2
	}
	p.box, p.addr = box, addr
}

func (s *storm) add(dice *rand.Rand, box *lab.Sandbox) (addr string, ok bool) {
	reply := s.suffer(dice, box, "ADD")
	if addrs := addressesOf(reply); reply.Exit == 0 && len(addrs) == 1 {
		return addrs[0], true
	}
	if !wasKilled(reply) && (reply.Err == nil || reply.Err.Code != 11) {
		s.Errorf("ADD of %s: %+v", box.Pod.Name, reply)
	}
	return "", false
}

// end repeats DEL until it succeeds, as a kubelet does, and then takes the sandbox away.
func (s *storm) end(dice *rand.Rand, box *lab.Sandbox) {
	for {
		reply := s.suffer(dice, box, "DEL")
		if reply.Exit == 0 {
			break
		}
		if !wasKilled(reply) {
			s.Errorf("DEL of %s: %+v", box.Pod.Name, reply)
			break
		}
	}
	box.Remove()
}

// suffer is a call that is killed in half of all cases, if it has not ended by then.
func (s *storm) suffer(dice *rand.Rand, box *lab.Sandbox, verb string) lab.Reply {
	call := box.IPAMCall(s.net, verb)
	if dice.IntN(2) == 0 {
		call.Wrap = []string{"timeout", "--signal=KILL", strconv.FormatFloat(0.0005+0.025*dice.Float64(), 'f', 6, 64)}
	}
	reply := s.told(box, verb, func() lab.Reply { return s.node.Call(call) })
	if wasKilled(reply) {
		s.killed.Add(1)
	}
	return reply
}

// wasKilled: timeout(1) dies by the signal that it sends, or says 128+9.
func wasKilled(reply lab.Reply) bool { return reply.Exit == -1 || reply.Exit == 137 }
