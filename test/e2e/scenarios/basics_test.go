package scenarios

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

func recreate(t *Test) {
	n := t.Node(1)
	t.Step("two echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	t.LeasesAre(n, "Bound", 2*families(t))
	t.Step("echoserver-0 has %s; both pods are deleted", addresses(before["echoserver-0"]))
	after := set.Recreate()
	t.Kept(before, after)
	t.LeasesAre(n, "Bound", 2*families(t))
	t.Step("both run again; echoserver-1 sends a request to echoserver-0")
	t.Answers(n, after["echoserver-1"], after["echoserver-0"])
}

func scaleToZero(t *Test) {
	n := t.Node(1)
	t.Step("three echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	before := set.Ready()
	t.Step("scaled to 0")
	set.Scale(0)
	t.LeasesAre(n, "Held", 3*families(t))
	t.Step("four other pods start")
	t.otherPods("others", n, 4, before)
	t.Step("scaled back to 3")
	set.Scale(3)
	t.Kept(before, set.Ready())
}

// otherPods starts pods without a window and ends the scenario if one gets an address of kept.
func (t *Test) otherPods(name string, n *cluster.Node, count int, kept Pods) *Set {
	d := t.Deployment(name, n, count)
	t.haveOtherAddresses(d.Ready(), kept)
	return d
}

func (t *Test) haveOtherAddresses(others, kept Pods) {
	owner := map[string]string{}
	for name, p := range kept {
		owner[addresses(p)] = name
	}
	for name, p := range others {
		if whose, ok := owner[addresses(p)]; ok {
			t.Fatalf("%s got %s, which is held for %s", name, addresses(p), whose)
		}
	}
}

// five returns a network of a node with five addresses. Each node has others, because each may have
// such a network at the same time.
func five(name, plugin string, n *cluster.Node) cluster.Network {
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 250, byte(n.Index), 0}), 29)
	return cluster.Network{Name: name, Type: plugin, Subnets: []netip.Prefix{subnet}}
}

func families(t *Test) int {
	if t.Cluster.DualStack {
		return 2
	}
	return 1
}

// Answers sends a request from one pod of a node to another and waits for the response.
func (t *Test) Answers(n *cluster.Node, from, to corev1.Pod) {
	ns := t.Sandbox(n, from).NetNS
	for _, ip := range to.Status.PodIPs {
		t.Eventually(fmt.Sprintf("%s answers %s", to.Name, from.Name), func() error {
			return inspect.InNetNS(ns, func() error { return get(net.JoinHostPort(ip.IP, "8080"), 2*time.Second) })
		})
	}
}

// get sends one request over a connection that the calling thread opens.
func get(addr string, limit time.Duration) error {
	conn, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}
