package scenarios

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

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
		t.Until(fmt.Sprintf("%s %v has grown by %v", c.name, c.labels, c.least), func() bool {
			return t.AgentMetrics(n).Sum(c.name, c.labels...)-before.Sum(c.name, c.labels...) >= c.least
		})
	}
	t.podMonitors()
}

// podMonitors scrapes what the PodMonitors name: each pod that they select has the port, and serves
// metrics of leasehold at the path.
func (t *Test) podMonitors() {
	text, err := os.ReadFile(filepath.Join(t.Cluster.Repo, "daemonset/components/pod-monitors/podmonitors.yaml"))
	t.Must(err)
	for _, document := range strings.Split(string(text), "\n---\n") {
		var monitor struct {
			Metadata metav1.ObjectMeta
			Spec     struct {
				Selector            metav1.LabelSelector
				PodMetricsEndpoints []struct{ Port, Path string }
			}
		}
		t.Must(yaml.Unmarshal([]byte(document), &monitor))
		pods, err := t.Client.CoreV1().Pods(monitor.Metadata.Namespace).List(t.Ctx,
			metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&monitor.Spec.Selector)})
		t.Must(err)
		if len(pods.Items) == 0 {
			t.Fatalf("PodMonitor %s selects no pod", monitor.Metadata.Name)
		}
		for _, p := range pods.Items {
			for _, e := range monitor.Spec.PodMetricsEndpoints {
				t.Eventually("a scrape", func() error { // a scenario of another node may kill its agent
					out, err := t.Client.CoreV1().Pods(p.Namespace).ProxyGet("http", p.Name, portOf(p, e.Port), e.Path,
						nil).DoRaw(t.Ctx)
					if err != nil || !strings.Contains(string(out), "\nleasehold_") {
						return fmt.Errorf("%s of pod %s, port %s: %v: %.200s", e.Path, p.Name, e.Port, err, out)
					}
					return nil
				})
			}
		}
	}
}

// portOf returns the number of the container port with a name, "" if there is none.
func portOf(p corev1.Pod, name string) string {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name == name {
				return fmt.Sprint(port.ContainerPort)
			}
		}
	}
	return ""
}

// poolBecomes waits until the object of a node and its metrics show how many addresses a network
// has, and how many of them are bound, held and free.
func (t *Test) poolBecomes(n *cluster.Node, network string, size, bound, held, free int) {
	want := fmt.Sprint(size, bound, held, free)
	t.Becomes("the NodeAddressPool of "+n.Name, want, func() any {
		return t.Kubectl("get", "nap", n.Name, "-o", `jsonpath={range .status.networks[?(@.name=="`+network+
			`")]}{.size} {.bound} {.held} {.free}{end}`)
	})
	t.Becomes("the metrics of "+n.Name, want, func() any {
		m := t.AgentMetrics(n)
		of := func(name string, labels ...string) int {
			return int(m.Sum(name, append(labels, "network="+network)...))
		}
		return fmt.Sprint(of("leasehold_pool_addresses"), of("leasehold_addresses", "state=Bound"),
			of("leasehold_addresses", "state=Held"), of("leasehold_pool_free_addresses"))
	})
}
