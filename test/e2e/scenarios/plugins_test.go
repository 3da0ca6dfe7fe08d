package scenarios

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

func lateDels(t *Test) {
	n := t.Node(3)
	// Not flannel, which passes only the first DEL on.
	t.Networks(n, cluster.Network{Name: t.NS, Type: "ptp",
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.253.0.0/24")}})
	t.Must(n.Trace())
	t.Cleanup(func() { t.Must(n.Untrace()) })
	t.Step("an echoserver starts on %s, and is deleted", n.Name)
	set := t.Echoserver("echoserver", n, 1)
	before := set.Ready()
	var old, sandbox inspect.Sandbox
	pods, late := before, 0
	for range 3 { // the kubelet may collect the old sandbox just before the ADD
		old = t.Sandbox(n, pods["echoserver-0"])
		pods = set.Recreate()
		t.Kept(before, pods)
		sandbox = t.Sandbox(n, pods["echoserver-0"])
		t.Step("it is back in sandbox %.12s; waiting for DELs of the old sandbox %.12s", sandbox.ID, old.ID)
		t.Eventually(150*time.Second, "the old sandbox is removed", func() error {
			for _, s := range t.sandboxes(n) {
				if s.ID == old.ID {
					return errors.New("it is there")
				}
			}
			return nil
		})
		if late = t.lateDELs(n, old, sandbox); late > 0 {
			break
		}
	}
	if late == 0 {
		t.Fatalf("none came")
	}
	t.Sleep(2 * time.Second)
	t.Step("%d came; the pod must not be affected", late)
	t.Kept(before, set.Ready())
	if now := t.Sandbox(n, set.Ready()["echoserver-0"]); now.ID != sandbox.ID {
		t.Fatalf("the sandbox was replaced by %s", now.ID)
	}
	t.leasedTo(n, addresses(pods["echoserver-0"]), sandbox.ID)
	t.otherPods("others", n, 3, before)
}

// lateDELs counts the DELs of an old sandbox that came after the ADD of the next one.
func (t *Test) lateDELs(n *cluster.Node, old, next inspect.Sandbox) (late int) {
	calls, err := n.Calls()
	t.Must(err)
	added := false
	for _, c := range calls {
		added = added || c.Verb == "ADD" && c.Container == next.ID
		if added && c.Verb == "DEL" && c.Container == old.ID {
			late++
		}
	}
	return late
}

// leasedTo checks that the store has an address bound to a sandbox, or to any sandbox for "".
func (t *Test) leasedTo(n *cluster.Node, address, sandbox string) {
	leases, ok := t.Leases(n)
	if !ok {
		return
	}
	for _, l := range leases {
		if l.Address == address && l.State == "Bound" && (sandbox == "" || l.Container == sandbox) {
			return
		}
	}
	t.Fatalf("the store of %s does not have %s bound to %s: %+v", n.Name, address, sandbox, leases)
}

func status(t *Test) {
	n := t.NodeWith("2.4")
	if n == nil {
		t.Step("no node of this cluster runs containerd 2.4: nothing to test")
		return
	}
	network := five(t.NS, "bridge", n)
	network.Version = "1.1.0"
	t.Must(n.Trace())
	t.Cleanup(func() { t.Must(n.Untrace()) })
	t.Networks(n, network)
	t.Step("%s has a network of CNI 1.1.0 with five addresses; waiting for STATUS", n.Name)
	t.Eventually(time.Minute, "STATUS", func() error { return t.called(n, "STATUS", 1) })
	t.Step("seven pods start")
	d := t.Deployment("many", n, 7)
	t.Eventually(90*time.Second, "five run and two are refused", func() error {
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
		if running != 5 || refused != 2 {
			return fmt.Errorf("%d run, %d are refused", running, refused)
		}
		return nil
	})
	sofar := t.calls(n, "STATUS")
	t.Step("five run, two are refused; the node must stay Ready through three more STATUS")
	t.Eventually(60*time.Second, "three more STATUS", func() error {
		node, err := t.Client.CoreV1().Nodes().Get(t.Ctx, n.Name, metav1.GetOptions{})
		t.Must(err)
		if !cluster.NodeReady(node) {
			t.Fatalf("the node is not Ready: %v", node.Status.Conditions)
		}
		return t.called(n, "STATUS", sofar+3)
	})
}

func (t *Test) called(n *cluster.Node, verb string, times int) error {
	if count := t.calls(n, verb); count < times {
		return fmt.Errorf("%d %s", count, verb)
	}
	return nil
}

// calls counts the traced calls of one verb.
func (t *Test) calls(n *cluster.Node, verb string) int {
	calls, err := n.Calls()
	t.Must(err)
	count := 0
	for _, c := range calls {
		if c.Verb == verb {
			count++
		}
	}
	return count
}
