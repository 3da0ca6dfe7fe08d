// Package netns_test runs the plugin like a container runtime: through libcni and the bridge, ptp,
// macvlan and flannel plugins, in network namespaces of its own.
package netns_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// newNode returns a node whose store is checked when the test ends.
func newNode(t *testing.T) *lab.Node {
	t.Helper()
	node := lab.NewNode(t)
	t.Cleanup(func() { checkStore(t, node) })
	return node
}

func checkStore(t *testing.T, node *lab.Node) {
	t.Helper()
	if out, err := node.Leasectl("check"); err != nil {
		t.Errorf("leasectl check: %v\n%s", err, out)
	}
}

// bridge returns a network with the bridge plugin, and additional fields in its ipam section.
func bridge(node *lab.Node, subnet string, more lab.Conf) *lab.Network {
	return node.Network("net", "1.0.0", node.Bridge(lab.With(node.IPAM(subnet), more)))
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

// fourAddresses returns ipam fields for a pool of the four addresses .10 to .13.
func fourAddresses(more lab.Conf) lab.Conf {
	ranges := [][]lab.Conf{{{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.13"}}}
	return lab.With(lab.Conf{"ranges": ranges}, more)
}

// start creates a sandbox of a pod, calls ADD, and returns the sandbox and its addresses.
func start(t *testing.T, node *lab.Node, net *lab.Network, pod lab.Pod) (*lab.Sandbox, string) {
	t.Helper()
	sandbox := node.Sandbox(pod)
	return sandbox, add(t, sandbox, net)
}

func add(t *testing.T, sandbox *lab.Sandbox, net *lab.Network) string {
	t.Helper()
	addrs, err := sandbox.Add(net)
	if err != nil {
		t.Fatalf("ADD %s: %v", sandbox.Pod.Name, err)
	}
	return strings.Join(addrs, " ")
}

func stop(t *testing.T, sandbox *lab.Sandbox, net *lab.Network) {
	t.Helper()
	if err := sandbox.Stop(net); err != nil {
		t.Fatalf("DEL %s: %v", sandbox.Pod.Name, err)
	}
}

// recreated returns the pod with another UID, as its controller recreates it.
func recreated(pod lab.Pod) lab.Pod {
	pod.UID = lab.NewPod("", "", "").UID
	return pod
}

// wantCode fails the test unless err is a CNI error with the code that contains all the words.
func wantCode(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v, want a CNI error with code %d", err, code)
	}
	if e.Code != code {
		t.Errorf("error code %d, want %d: %v", e.Code, code, e)
	}
	for _, word := range words {
		if !strings.Contains(e.Error(), word) {
			t.Errorf("error %q does not contain %q", e.Error(), word)
		}
	}
}

// cniError returns the CNI error of a direct call, or nil if it succeeded.
func cniError(t *testing.T, reply lab.Reply) error {
	t.Helper()
	if reply.Exit == 0 {
		return nil
	}
	if reply.Err == nil {
		t.Fatalf("exit status %d without a CNI error on stdout: %q, stderr %q", reply.Exit, reply.Stdout, reply.Stderr)
	}
	return reply.Err
}

// of returns the leases of a pod.
func of(leases []lab.Lease, pod lab.Pod) []lab.Lease {
	return slices.DeleteFunc(slices.Clone(leases),
		func(l lab.Lease) bool { return l.Namespace != pod.Namespace || l.Pod != pod.Name })
}
