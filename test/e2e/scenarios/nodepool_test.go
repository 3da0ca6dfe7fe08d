package scenarios

import (
	"fmt"
	"net/netip"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// nodePool has pods come and go, and reads what the NodeAddressPool of the node and its metrics
// show.
func nodePool(t *Test) {
	n := t.Node(3)
	network := t.NS
	t.Networks(n, cluster.Network{Name: network, Type: "bridge",
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.245.0.0/24")}})
	before := t.AgentMetrics(n)
	t.Step("three echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	t.poolBecomes(n, network, 253, 3, 0, 250)
	t.Step("scaled to 1")
	set.Scale(1)
	t.poolBecomes(n, network, 253, 1, 2, 250)
	t.Step("kubectl get nap:\n%s", t.Kubectl("get", "nap"))

	t.Step("scaled to 3, two of them get their addresses again")
	set.Scale(3)
	set.Ready()
	for _, c := range []struct {
		least  float64
		name   string
		labels []string
	}{
		{5, "leasehold_calls_total", []string{"verb=ADD", "result=ok"}},
		{2, "leasehold_calls_total", []string{"verb=DEL", "result=ok"}},
		{7, "leasehold_call_duration_seconds", nil},
		{2, "leasehold_leases_kept_total", nil},
	} {
		t.Eventually("the metrics of calls", func() error {
			if got := t.AgentMetrics(n).Sum(c.name, c.labels...) - before.Sum(c.name, c.labels...); got < c.least {
				return fmt.Errorf("%s %v has grown by %v, want %v at least", c.name, c.labels, got, c.least)
			}
			return nil
		})
	}
}

// poolBecomes waits until the object of a node and its metrics show how many addresses a network
// has, and how many of them are bound, held and free.
func (t *Test) poolBecomes(n *cluster.Node, network string, size, bound, held, free int) {
	want := fmt.Sprint(size, bound, held, free)
	t.Eventually(fmt.Sprintf("the NodeAddressPool of %s shows %s", n.Name, want), func() error {
		out, err := t.kubectl("", "get", "nap", n.Name, "-o", `jsonpath={range .status.networks[?(@.name=="`+network+
			`")]}{.size} {.bound} {.held} {.free}{end}`)
		if err == nil && out != want {
			err = fmt.Errorf("it shows %s", out)
		}
		return err
	})
	t.Eventually("the metrics show "+want, func() error {
		m := t.AgentMetrics(n)
		of := func(name string, labels ...string) int {
			return int(m.Sum(name, append(labels, "network="+network)...))
		}
		got := fmt.Sprint(of("leasehold_pool_addresses"), of("leasehold_addresses", "state=Bound"),
			of("leasehold_addresses", "state=Held"), of("leasehold_pool_free_addresses"))
		if got != want {
			return fmt.Errorf("they show %s", got)
		}
		return nil
	})
}
