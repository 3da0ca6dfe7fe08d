package scenarios

import (
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// leasedTo checks that the store has an address bound to a sandbox, or to any sandbox for "".
func (t *Test) leasedTo(n *cluster.Node, address, sandbox string) {
	leases := t.Leases(n)
	for _, l := range leases {
		if l.Address == address && l.State == "Bound" && (sandbox == "" || l.Container == sandbox) {
			return
		}
	}
	t.Fatalf("the store of %s does not have %s bound to %s: %+v", n.Name, address, sandbox, leases)
}

func status(t *Test) {
	n := t.Node(3)
	if !n.CallsStatus() {
		t.Step("the runtime of %s calls no STATUS: nothing to test", n.Name)
		return
	}
	called := func() float64 { return t.AgentMetrics(n).Sum("leasehold_calls_total", "verb=STATUS") }
	calledSince := func(before, times float64) error {
		if count := called() - before; count < times {
			return fmt.Errorf("%v STATUS", count)
		}
		return nil
	}
	network := five(t.NS, "bridge", n)
	network.Version = "1.1.0"
	before := called()
	t.Networks(n, network)
	t.Step("%s has a network of CNI 1.1.0 with five addresses; waiting for STATUS", n.Name)
	t.Eventually("STATUS", func() error { return calledSince(before, 1) })
	t.Step("seven pods start")
	d := t.Deployment("many", n, 7)
	t.Eventually("five run and two are refused", func() error {
		running, refused := 0, 0
		for _, p := range d.Pods() {
			if ready(p) {
				running++
			} else if slices.ContainsFunc(t.Events(string(p.UID), "FailedCreatePodSandBox"), func(text string) bool {
				return strings.Contains(text, "no IP addresses available in range set")
			}) {
				refused++
			}
		}
		if running != 5 || refused != 2 {
			return fmt.Errorf("%d run, %d are refused", running, refused)
		}
		return nil
	})
	before = called()
	t.Step("five run, two are refused; the node must stay Ready through three more STATUS")
	t.Eventually("three more STATUS", func() error {
		if node := t.object(n.Name); !cluster.NodeReady(node) {
			t.Fatalf("the node is not Ready: %v", node.Status.Conditions)
		}
		return calledSince(before, 3)
	})
}
