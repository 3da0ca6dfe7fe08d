package scenarios

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
)

func onBridge(w *World) { recreateAndScale(w, "bridge") }
func onPtp(w *World)    { recreateAndScale(w, "ptp") }

func recreateAndScale(w *World, plugin string) {
	n := w.Node(2)
	w.Networks(n, bed.Network{Name: w.NS, Type: plugin, Subnets: []netip.Prefix{netip.MustParsePrefix("10.251.0.0/24")}})
	w.Step("two echoservers start on %s with %s", n.Name, plugin)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	w.Step("both are deleted")
	w.Kept(before, set.Recreate())
	w.Step("scaled to 0 and back, with two others between")
	set.Scale(0)
	w.strangers("others", n, 2, before)
	set.Scale(2)
	after := set.Ready()
	w.Kept(before, after)
	w.Answers(n, after["echoserver-0"], after["echoserver-1"])
}

func secondNetwork(w *World) {
	n := w.Node(2)
	lan := bed.Network{Name: "lan", Type: "bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("10.252.0.0/24")}}
	w.Networks(n, n.DefaultNetwork(), lan)
	w.Must(n.Stop(w.Ctx, bed.Containerd))
	w.Must(n.StartContainerdWithNetworks(w.Ctx, 2))
	w.Cleanup(func() {
		w.Clear() // with both networks still there to hear the DELs
		w.Must(n.Stop(w.Ctx, bed.Containerd))
		w.Must(n.StartContainerd(w.Ctx))
	})
	w.Step("two echoservers start on %s, in two networks", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := w.interfaces(set)
	for pod, lines := range before {
		if !strings.Contains(lines, "eth0") || !strings.Contains(lines, "eth1") {
			w.Fatalf("%s has %s", pod, lines)
		}
	}
	w.Step("echoserver-0 has %s; both pods are deleted, and one more interface is taken in each network",
		before["echoserver-0"])
	set.Scale(0)
	w.strangers("others", n, 1, nil)
	set.Scale(2)
	after := w.interfaces(set)
	for pod := range before {
		if before[pod] != after[pod] {
			w.Lostf("%s had %s and has %s", pod, before[pod], after[pod])
		}
	}
}

// interfaces looks into the pods' network namespaces.
func (w *World) interfaces(set *Set) map[string]string {
	found := map[string]string{}
	for name, pod := range set.Ready() {
		byName, err := look.Addresses(w.Sandbox(set.Node, pod).NetNS)
		w.Must(err)
		var lines []string
		for link, addrs := range byName {
			lines = append(lines, fmt.Sprint(link, " ", addrs))
		}
		slices.Sort(lines)
		found[name] = strings.Join(lines, ", ")
	}
	return found
}

func lateDels(w *World) {
	n := w.Node(3)
	// Not flannel: it swallows every DEL but the first.
	w.Networks(n, bed.Network{Name: w.NS, Type: "ptp", Subnets: []netip.Prefix{netip.MustParsePrefix("10.253.0.0/24")}})
	w.Must(n.Trace())
	w.Cleanup(func() { w.Must(n.Untrace()) })
	w.Step("an echoserver starts on %s, and is deleted", n.Name)
	set := w.Echoserver("echoserver", n, 1)
	before := set.Ready()
	old := w.Sandbox(n, before["echoserver-0"])
	after := set.Recreate()
	w.Kept(before, after)
	sandbox := w.Sandbox(n, after["echoserver-0"])
	w.Step("it is back in sandbox %.12s; waiting for DELs of the old sandbox %.12s", sandbox.ID, old.ID)
	late := 0
	w.Eventually(150*time.Second, "a late DEL", func() error {
		calls, err := n.Calls()
		w.Must(err)
		late = 0
		added := false
		for _, c := range calls {
			added = added || c.Verb == "ADD" && c.Container == sandbox.ID
			if added && c.Verb == "DEL" && c.Container == old.ID {
				late++
			}
		}
		if late == 0 {
			return fmt.Errorf("none in %d calls", len(calls))
		}
		return nil
	})
	w.Sleep(2 * time.Second)
	w.Step("%d came; the pod must not have noticed", late)
	w.Kept(before, set.Ready())
	if now := w.Sandbox(n, set.Ready()["echoserver-0"]); now.ID != sandbox.ID {
		w.Fatalf("the sandbox was replaced by %s", now.ID)
	}
	w.heldBy(n, addresses(after["echoserver-0"]), sandbox.ID)
	w.strangers("others", n, 3, before)
}

// heldBy checks that the store has an address bound to a sandbox, or to any if none is named.
func (w *World) heldBy(n *bed.Node, address, sandbox string) {
	leases, ok := w.Leases(n)
	if !ok {
		return
	}
	for _, l := range leases {
		if l.Address == address && l.State == "Bound" && (sandbox == "" || l.Container == sandbox) {
			return
		}
	}
	w.Fatalf("the store of %s does not have %s bound to %s: %+v", n.Name, address, sandbox, leases)
}

func status(w *World) {
	n := w.NodeWith("2.4")
	if n == nil {
		w.Step("no node of this bed runs containerd 2.4: nothing to see")
		return
	}
	network := five(w.NS, "bridge", n)
	network.Version = "1.1.0"
	w.Must(n.Trace())
	w.Cleanup(func() { w.Must(n.Untrace()) })
	w.Networks(n, network)
	w.Step("%s has a network of CNI 1.1.0 with five addresses; waiting for STATUS", n.Name)
	w.Eventually(30*time.Second, "STATUS", func() error { return w.called(n, "STATUS", 1) })
	w.Step("seven pods want one")
	d := w.Deployment("many", n, 7)
	w.Eventually(90*time.Second, "five run and two are refused", func() error {
		running, refused := 0, 0
		for _, p := range d.Pods() {
			if ready(p) {
				running++
			} else if slices.ContainsFunc(w.Events(string(p.UID), "FailedCreatePodSandBox"), func(text string) bool {
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
	sofar := w.calls(n, "STATUS")
	w.Step("five run, two are refused; the node must stay Ready through three more STATUS")
	w.Eventually(60*time.Second, "three more STATUS", func() error {
		node, err := w.Client.CoreV1().Nodes().Get(w.Ctx, n.Name, metav1.GetOptions{})
		w.Must(err)
		if !bed.NodeReady(node) {
			w.Fatalf("the node is not Ready: %v", node.Status.Conditions)
		}
		return w.called(n, "STATUS", sofar+3)
	})
}

func (w *World) called(n *bed.Node, verb string, times int) error {
	if count := w.calls(n, verb); count < times {
		return fmt.Errorf("%d %s", count, verb)
	}
	return nil
}

// calls counts the traced calls of one verb.
func (w *World) calls(n *bed.Node, verb string) int {
	calls, err := n.Calls()
	w.Must(err)
	count := 0
	for _, c := range calls {
		if c.Verb == verb {
			count++
		}
	}
	return count
}
