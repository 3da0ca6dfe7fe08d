package scenarios

import (
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// leasedTo checks that the store has each of a pod's addresses bound to a sandbox, or to any
// sandbox for "".
func (t *Test) leasedTo(n *cluster.Node, addresses, sandbox string) {
	leases := t.Leases(n)
	for address := range strings.SplitSeq(addresses, ",") {
		if !slices.ContainsFunc(leases, func(l cli.Row) bool {
			return l.Address == address && l.State == "Bound" && (sandbox == "" || l.Container == sandbox)
		}) {
			t.Fatalf("the store of %s does not have %s bound to %s: %+v", n.Name, address, sandbox, leases)
		}
	}
}

func status(t *Test) {
	n := t.Node(3)
	if !n.CallsStatus() {
		t.Step("the runtime of %s calls no STATUS: nothing to test", n.Name)
		return
	}
	called := func() float64 { return t.AgentMetrics(n).Sum("leasehold_calls_total", "verb=STATUS") }
	network := five(t.NS, "bridge", n)
	network.Version = "1.1.0"
	before := called()
	t.Networks(n, network)
	t.Step("%s has a network of CNI 1.1.0 with five addresses; waiting for STATUS", n.Name)
	t.Until("STATUS is called", func() bool { return called() > before })
	t.Step("seven pods start")
	d := t.Deployment("many", n, 7)
	t.Becomes("how many pods run and are refused", [2]int{5, 2}, func() any {
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
		return [2]int{running, refused}
	})
	before = called()
	t.Step("five run, two are refused; the node must stay Ready through three more STATUS")
	t.Until("STATUS is called three times more", func() bool {
		if node := t.object(n.Name); !cluster.NodeReady(node) {
			t.Fatalf("the node is not Ready: %v", node.Status.Conditions)
		}
		return called() >= before+3
	})
}
