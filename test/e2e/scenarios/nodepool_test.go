package scenarios

import (
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// nodePoolLag is the longest time until a NodeAddressPool shows a change: the agent looks every 30
// to 36 s, and writes numbers that it has found twice.
const nodePoolLag = 80 * time.Second

// nodePool compares the NodeAddressPool of a node with leasectl and the metrics while pods come and
// go.
func nodePool(t *Test) {
	n := t.Node(3)
	network := t.ownNetwork(n, "bridge", "10.245.0.0/24").Name
	before := t.AgentMetrics(n)
	t.Step("three echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	t.poolBecomes(n, network, inspect.Counts{Size: 253, Bound: 3, Free: 250})
	t.Step("scaled to 1")
	set.Scale(1)
	t.poolBecomes(n, network, inspect.Counts{Size: 253, Bound: 1, Held: 2, Free: 250})
	t.Step("kubectl get nap:\n%s", t.Kubectl("get", "nap"))

	t.Step("leasectl shows the same in the agent's pod")
	for _, args := range [][]string{{"pools"}, {"list"}, {"gc", "--dry-run"}} {
		in, err := n.Machine().Run(t.Ctx, append([]string{t.Cluster.Leasectl()}, args...)...)
		t.Must(err)
		out := t.Kubectl(append([]string{"exec", "--namespace=" + cluster.System, t.Agent(n).Name, "-c", "agent", "--",
			"/leasectl", "--host-root=/proc/1/root"}, args...)...)
		if out != string(in) {
			t.Fatalf("leasectl %s prints in the agent's pod\n%s\nand on the node\n%s", strings.Join(args, " "), out, in)
		}
	}

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
		t.Eventually(time.Minute, "the metrics of calls", func() error {
			if got := t.AgentMetrics(n).Sum(c.name, c.labels...) - before.Sum(c.name, c.labels...); got < c.least {
				return fmt.Errorf("%s %v has grown by %v, want %v at least", c.name, c.labels, got, c.least)
			}
			return nil
		})
	}
}

// poolBecomes waits until the object of a node shows the numbers of a network, and compares them
// with leasectl and the metrics.
func (t *Test) poolBecomes(n *cluster.Node, network string, want inspect.Counts) {
	began := time.Now()
	t.Eventually(nodePoolLag, fmt.Sprintf("the NodeAddressPool of %s shows %+v", n.Name, want), func() error {
		p, err := inspect.ReadNodeAddressPool(t.Ctx, t.Dynamic, n.Name)
		if apierrors.IsNotFound(err) {
			return errors.New("there is none")
		}
		t.Must(err)
		if got, found := p.Network(network); got != want || !found {
			return fmt.Errorf("of %s it shows %+v", network, got)
		}
		return nil
	})
	t.Step("the NodeAddressPool of %s shows %+v after %.1f s", n.Name, want, time.Since(began).Seconds())
	sets, err := inspect.Pools(t.Ctx, n.Machine(), t.Cluster.Leasectl(), network)
	t.Must(err)
	if len(sets) != 1 || sets[0] != want {
		t.Fatalf("leasectl pools shows %+v, want %+v", sets, want)
	}
	t.Eventually(time.Minute, "the metrics", func() error {
		m := t.AgentMetrics(n)
		of := func(name string, labels ...string) int64 {
			return int64(m.Sum(name, append(labels, "network="+network)...))
		}
		got := inspect.Counts{Size: of("leasehold_pool_addresses"), Free: of("leasehold_pool_free_addresses"),
			Bound: of("leasehold_addresses", "state=Bound"), Held: of("leasehold_addresses", "state=Held")}
		if got != want {
			return fmt.Errorf("%+v, want %+v", got, want)
		}
		return nil
	})
}
