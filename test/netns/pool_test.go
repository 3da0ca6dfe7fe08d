package netns_test

import (
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// A full pool says what fills it, and when the next address comes free; then it does.
func TestFullPool(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", few(nil))
	var kept []string
	for i := range 4 {
		window := []string{"10", "20", "", ""}[i]
		sandbox, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("pod-", i), window))
		if window != "" {
			stop(t, sandbox, net)
			kept = append(kept, address)
		}
	}
	late := lab.NewPod("default", "late", "")
	_, err := node.Sandbox(late).Add(net)
	wantCode(t, err, 11, "no IP addresses available in range set: 10.1.0.10-10.1.0.13", "2 bound", "2 firmly held", "0 in cool-down")
	next := regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`).FindString(err.Error())
	until, parseErr := time.Parse(time.RFC3339, next)
	if left := time.Until(until); parseErr != nil || left < 8*time.Minute || left > 10*time.Minute {
		t.Errorf("%q says that the next hold ends at %q, want in 10 minutes", err, next)
	}

	node.Clock += 10*time.Minute + time.Second
	if _, address := start(t, node, net, late); address != kept[0] {
		t.Errorf("got %s, want %s, whose hold has ended", address, kept[0])
	}
	_, err = node.Sandbox(lab.NewPod("default", "later", "")).Add(net)
	wantCode(t, err, 11, "3 bound", "1 firmly held")
}

// With onExhaustion yield the firm hold that is nearest to its end gives way.
func TestFullPoolYields(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", few(lab.Conf{"onExhaustion": "yield"}))
	var addresses []string
	for i, window := range []string{"30", "10", "20", "40"} {
		sandbox, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("db-", i), window))
		stop(t, sandbox, net)
		addresses = append(addresses, address)
	}
	for i, want := range []string{addresses[1], addresses[2], addresses[0], addresses[3]} {
		if _, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("web-", i), "")); address != want {
			t.Errorf("web-%d got %s, want %s", i, address, want)
		}
	}
}

// Soft holds give way, oldest first, when the pool has nothing better.
func TestSoftHoldsGiveWay(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", few(nil))
	var addresses []string
	for i := range 4 {
		sandbox, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("web-", i), ""))
		stop(t, sandbox, net)
		addresses = append(addresses, address)
	}
	for i, want := range addresses {
		if _, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("api-", i), "")); address != want {
			t.Errorf("api-%d got %s, want %s", i, address, want)
		}
	}
}

// A sandbox that crashes is made anew for the same pod UID: the short hold is for that.
func TestSoftHoldIsForTheSameUID(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	pod := lab.NewPod("default", "web-0", "")
	first, home := start(t, node, net, pod)
	stop(t, first, net)
	second, address := start(t, node, net, pod)
	if address != home {
		t.Errorf("the same pod got %s, want %s", address, home)
	}
	stop(t, second, net)
	if _, address := start(t, node, net, again(pod)); address == home {
		t.Errorf("another pod of that name got %s, which it did not ask to keep", address)
	}
}

func TestParallelAdds(t *testing.T) {
	const pods = 64
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	var sandboxes []*lab.Sandbox
	for i := range pods {
		sandboxes = append(sandboxes, node.Sandbox(lab.NewPod("default", fmt.Sprint("pod-", i), "10")))
	}
	all := func(verb string) {
		var wait sync.WaitGroup
		for _, s := range sandboxes {
			wait.Go(func() {
				if reply := s.Call(net, verb); reply.Exit != 0 {
					t.Errorf("%s %s: %+v", verb, s.Pod.Name, reply)
				}
			})
		}
		wait.Wait()
	}

	all("ADD")
	addresses := map[string]bool{}
	for _, l := range node.Leases() {
		addresses[l.Address] = true
	}
	if len(addresses) != pods {
		t.Errorf("%d addresses for %d pods", len(addresses), pods)
	}
	all("DEL")
	if held := node.Leases("--state", "held"); len(held) != pods {
		t.Errorf("%d holds, want %d", len(held), pods)
	}
}
