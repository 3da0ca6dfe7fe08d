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
	t.Step("both are back; echoserver-1 asks echoserver-0 for an echo")
	t.Answers(n, after["echoserver-1"], after["echoserver-0"])
}

func rollingUpdate(t *Test) {
	n := t.Node(1)
	t.Step("two echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	t.Step("the template changes")
	t.Kept(before, set.Rollout())
}

func scaleToZero(t *Test) {
	n := t.Node(1)
	t.Step("three echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	before := set.Ready()
	t.Step("scaled to 0")
	set.Scale(0)
	t.LeasesAre(n, "Held", 3*families(t))
	t.Step("four others come")
	t.strangers("others", n, 4, before)
	t.Step("scaled back to 3")
	set.Scale(3)
	t.Kept(before, set.Ready())
}

// strangers starts pods without a window and ends the scenario if one gets an address that is kept.
func (t *Test) strangers(name string, n *cluster.Node, count int, kept Pods) *Set {
	d := t.Deployment(name, n, count)
	t.notTheirs(d.Ready(), kept)
	return d
}

func (t *Test) notTheirs(strangers, kept Pods) {
	owner := map[string]string{}
	for name, p := range kept {
		owner[addresses(p)] = name
	}
	for name, p := range strangers {
		if whose, ok := owner[addresses(p)]; ok {
			t.Lostf("%s got %s, which is kept for %s", name, addresses(p), whose)
		}
	}
}

// five is a node's own network with room for five pods. No two nodes have the same addresses: there
// may be such a network on each at a time.
func five(name, plugin string, n *cluster.Node) cluster.Network {
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 250, byte(n.Index), 0}), 29)
	return cluster.Network{Name: name, Type: plugin, Subnets: []netip.Prefix{subnet}}
}

func windowPassed(t *Test) {
	const window = 30 * time.Second
	n := t.Node(2)
	t.Networks(n, five(t.NS, "bridge", n))
	t.Step("an echoserver with a window of %v starts on %s, where five addresses are to be had", window, n.Name)
	set := t.Echoserver("echoserver", n, 1, KeptFor(window.String()))
	before := set.Ready()
	t.Step("scaled to 0; five others want an address")
	deleted := time.Now()
	set.Scale(0)
	gone := time.Now()
	others := t.Deployment("others", n, 5)
	for time.Since(deleted) < window-2*time.Second {
		t.notTheirs(others.Pods(), before)
		t.Sleep(time.Second)
	}
	running := 0
	for _, p := range others.Pods() {
		if ready(p) {
			running++
		}
	}
	if running != 4 {
		t.Fatalf("%d of the others run while one of five addresses is kept, want 4", running)
	}
	t.Step("four of them run, %s is kept; the window ends", addresses(before["echoserver-0"]))
	others.Ready()
	if waited := time.Since(gone); waited < window-2*time.Second {
		t.Fatalf("the fifth got its address after %v", waited)
	}
	t.Step("the fifth has got it")
}

func noAnnotation(t *Test) {
	n := t.Node(1)
	t.Step("an echoserver without a window starts on %s", n.Name)
	set := t.Echoserver("echoserver", n, 1, KeptFor(""))
	before := set.Ready()
	after := set.Recreate()
	if addresses(before["echoserver-0"]) == addresses(after["echoserver-0"]) {
		t.Fatalf("it has %s again", addresses(after["echoserver-0"]))
	}
	t.Step("recreated, it has %s after %s", addresses(after["echoserver-0"]), addresses(before["echoserver-0"]))
}

func churnBeside(t *Test) {
	rounds := 4
	if t.Long {
		rounds = 60
	}
	n := t.Node(1)
	t.Step("two echoservers start on %s, and six others", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	others := t.Deployment("others", n, 6)
	for i := range rounds {
		t.notTheirs(others.Ready(), before)
		t.Step("round %d: everybody is deleted", i+1)
		old := others.Pods()
		set.Delete(before)
		others.Delete(old)
		after := set.ReadyBut(before)
		t.Kept(before, after)
		t.notTheirs(others.ReadyBut(old), before)
		before = after
	}
}

func fifty(t *Test) {
	n := t.Node(1)
	began := time.Now()
	t.Step("50 echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 50)
	before := set.Ready()
	t.Step("all run after %.0f s; scaled to 0", time.Since(began).Seconds())
	set.Scale(0)
	t.LeasesAre(n, "Held", 50*families(t))
	began = time.Now()
	t.Step("all gone; scaled to 50")
	set.Scale(50)
	after := set.Ready()
	t.Step("all run after %.0f s", time.Since(began).Seconds())
	t.Kept(before, after)
	t.LeasesAre(n, "Bound", 50*families(t))
}

func families(t *Test) int {
	if t.Cluster.DualStack {
		return 2
	}
	return 1
}

// Answers has one pod of a node ask another for an echo.
func (t *Test) Answers(n *cluster.Node, from, to corev1.Pod) {
	ns := t.Sandbox(n, from).NetNS
	for _, ip := range to.Status.PodIPs {
		t.Eventually(90*time.Second, fmt.Sprintf("%s answers %s", to.Name, from.Name), func() error {
			return inspect.InNetNS(ns, func() error { return get(net.JoinHostPort(ip.IP, "8080")) })
		})
	}
}

// get talks over one connection that is made in the calling thread.
func get(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}
