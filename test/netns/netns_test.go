// Package netns_test runs the plugin like a container runtime: through libcni and the bridge, ptp,
// macvlan and flannel plugins, in network namespaces of its own.
package netns_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestMain(m *testing.M) { lab.Main(m) }

// newNode returns a node whose store is checked when the test ends.
func newNode(t *testing.T) *lab.Node {
	t.Helper()
	node := lab.NewNode(t)
	t.Cleanup(node.Check)
	return node
}

// mainPlugins have configurations of two range sets.
var mainPlugins = []struct {
	plugin  string
	version string
	conf    func(*lab.Node) lab.Conf
}{
	{"bridge", "1.1.0", func(n *lab.Node) lab.Conf { return n.Bridge(n.IPAM(subnet, subnet6)) }},
	{"ptp", "1.0.0", func(n *lab.Node) lab.Conf { return n.PTP(n.IPAM(subnet, subnet6)) }},
	{"macvlan", "0.4.0", func(n *lab.Node) lab.Conf { return n.Macvlan(n.IPAM(subnet, subnet6)) }},
	{"flannel", "0.3.1", func(n *lab.Node) lab.Conf {
		ipam := n.IPAM()
		delete(ipam, "ranges") // from subnet.env
		return n.Flannel(ipam, subnet, subnet6)
	}},
}

const subnet, subnet6 = "10.1.0.0/24", "fd01::/64"

// start creates a sandbox of a pod, calls ADD, and returns the sandbox and its addresses.
func start(t *testing.T, node *lab.Node, net *lab.Network, pod lab.Pod) (*lab.Sandbox, string) {
	t.Helper()
	sandbox := node.Sandbox(pod)
	return sandbox, add(t, sandbox, net)
}

func add(t *testing.T, sandbox *lab.Sandbox, net *lab.Network) string {
	t.Helper()
	addrs, err := sandbox.Add(net)
	must.Succeed(t, err, "ADD", sandbox.Pod.Name)
	return strings.Join(addrs, " ")
}

func stop(t *testing.T, sandbox *lab.Sandbox, net *lab.Network) {
	t.Helper()
	must.Succeed(t, sandbox.Stop(net), "DEL", sandbox.Pod.Name)
}

// of returns the leases of a pod.
func of(leases []lab.Lease, pod lab.Pod) []lab.Lease {
	return slices.DeleteFunc(slices.Clone(leases),
		func(l lab.Lease) bool { return l.Namespace != pod.Namespace || l.Pod != pod.Name })
}
