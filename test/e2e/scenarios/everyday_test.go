package scenarios

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
)

func recreate(w *World) {
	n := w.Node(1)
	w.Step("two echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	w.LeasesAre(n, "Bound", 2*families(w))
	w.Step("echoserver-0 has %s; both pods are deleted", addresses(before["echoserver-0"]))
	after := set.Recreate()
	w.Kept(before, after)
	w.LeasesAre(n, "Bound", 2*families(w))
	w.Step("both are back; echoserver-1 asks echoserver-0 for an echo")
	w.Answers(n, after["echoserver-1"], after["echoserver-0"])
}

func rollingUpdate(w *World) {
	n := w.Node(1)
	w.Step("two echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	w.Step("the template changes")
	w.Kept(before, set.Rollout())
}

func scaleToZero(w *World) {
	n := w.Node(1)
	w.Step("three echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 3)
	before := set.Ready()
	w.Step("scaled to 0")
	set.Scale(0)
	w.LeasesAre(n, "Held", 3*families(w))
	w.Step("four others come")
	w.strangers("others", n, 4, before)
	w.Step("scaled back to 3")
	set.Scale(3)
	w.Kept(before, set.Ready())
}

// strangers starts pods without a window and ends the scenario if one gets an address that is kept.
func (w *World) strangers(name string, n *bed.Node, count int, kept Pods) *Set {
	d := w.Deployment(name, n, count)
	w.notTheirs(d.Ready(), kept)
	return d
}

func (w *World) notTheirs(strangers, kept Pods) {
	owner := map[string]string{}
	for name, p := range kept {
		owner[addresses(p)] = name
	}
	for name, p := range strangers {
		if whose, ok := owner[addresses(p)]; ok {
			w.Lostf("%s got %s, which is kept for %s", name, addresses(p), whose)
		}
	}
}

// five is a node's own network with room for five pods. No two nodes have the same addresses: there may be such a network on
// each at a time.
func five(name, plugin string, n *bed.Node) bed.Network {
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 250, byte(n.Index), 0}), 29)
	return bed.Network{Name: name, Type: plugin, Subnets: []netip.Prefix{subnet}}
}

func windowPassed(w *World) {
	const window = 30 * time.Second
	n := w.Node(2)
	w.Networks(n, five(w.NS, "bridge", n))
	w.Step("an echoserver with a window of %v starts on %s, where five addresses are to be had", window, n.Name)
	set := w.Echoserver("echoserver", n, 1, KeptFor(window.String()))
	before := set.Ready()
	w.Step("scaled to 0; five others want an address")
	deleted := time.Now()
	set.Scale(0)
	gone := time.Now()
	others := w.Deployment("others", n, 5)
	for time.Since(deleted) < window-2*time.Second {
		w.notTheirs(others.Pods(), before)
		w.Sleep(time.Second)
	}
	running := 0
	for _, p := range others.Pods() {
		if ready(p) {
			running++
		}
	}
	if running != 4 {
		w.Fatalf("%d of the others run while one of five addresses is kept, want 4", running)
	}
	w.Step("four of them run, %s is kept; the window ends", addresses(before["echoserver-0"]))
	others.Ready()
	if waited := time.Since(gone); waited < window-2*time.Second {
		w.Fatalf("the fifth got its address after %v", waited)
	}
	w.Step("the fifth has got it")
}

func noAnnotation(w *World) {
	n := w.Node(1)
	w.Step("an echoserver without a window starts on %s", n.Name)
	set := w.Echoserver("echoserver", n, 1, KeptFor(""))
	before := set.Ready()
	after := set.Recreate()
	if addresses(before["echoserver-0"]) == addresses(after["echoserver-0"]) {
		w.Fatalf("it has %s again", addresses(after["echoserver-0"]))
	}
	w.Step("recreated, it has %s after %s", addresses(after["echoserver-0"]), addresses(before["echoserver-0"]))
}

func churnBeside(w *World) {
	rounds := 4
	if w.Long {
		rounds = 60
	}
	n := w.Node(1)
	w.Step("two echoservers start on %s, and six others", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	others := w.Deployment("others", n, 6)
	for i := range rounds {
		w.notTheirs(others.Ready(), before)
		w.Step("round %d: everybody is deleted", i+1)
		old := others.Pods()
		set.Delete(before)
		others.Delete(old)
		after := set.ReadyBut(before)
		w.Kept(before, after)
		w.notTheirs(others.ReadyBut(old), before)
		before = after
	}
}

func fifty(w *World) {
	n := w.Node(1)
	began := time.Now()
	w.Step("50 echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 50)
	before := set.Ready()
	w.Step("all run after %.0f s; scaled to 0", time.Since(began).Seconds())
	set.Scale(0)
	w.LeasesAre(n, "Held", 50*families(w))
	began = time.Now()
	w.Step("all gone; scaled to 50")
	set.Scale(50)
	after := set.Ready()
	w.Step("all run after %.0f s", time.Since(began).Seconds())
	w.Kept(before, after)
	w.LeasesAre(n, "Bound", 50*families(w))
}

func families(w *World) int {
	if w.Bed.DualStack {
		return 2
	}
	return 1
}

// Answers has one pod of a node ask another for an echo.
func (w *World) Answers(n *bed.Node, from, to corev1.Pod) {
	ns := w.Sandbox(n, from).NetNS
	for _, ip := range to.Status.PodIPs {
		w.Eventually(90*time.Second, fmt.Sprintf("%s answers %s", to.Name, from.Name), func() error {
			return look.Inside(ns, func() error { return get(net.JoinHostPort(ip.IP, "8080")) })
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
