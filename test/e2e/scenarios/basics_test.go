package scenarios

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

func recreate(t *Test) {
	n := t.Node(1)
	t.Step("three echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	before := set.Ready()
	t.Step("echoserver-0 has %s; all pods are deleted", addresses(before["echoserver-0"]))
	after := set.Recreate()
	t.Kept(before, after)
	t.LeasesAre(n, "Bound", 3*families(t))
	t.Step("all run again; echoserver-1 sends a request to echoserver-0")
	ns := t.Sandbox(n, after["echoserver-1"]).NetNS
	for _, ip := range after["echoserver-0"].Status.PodIPs {
		t.Eventually("echoserver-0 answers", func() error {
			return get(ns, net.JoinHostPort(ip.IP, "8080"), 2*time.Second)
		})
	}
	t.Step("scaled to 0, four other pods start, scaled back to 3")
	set.Scale(0)
	t.LeasesAre(n, "Held", 3*families(t))
	t.otherPods("others", n, 4, before)
	set.Scale(3)
	t.Kept(before, set.Ready())
}

// forceDelete deletes the object of a pod whose container cannot be stopped. The watch over all
// scenarios checks that its address is not in two pods at once.
func forceDelete(t *Test) {
	n := t.Node(1)
	stubborn := Stubborn(20 * time.Second)
	for _, set := range []*Set{t.Echoserver("echoserver", n, 1, stubborn),
		t.Named("registry", n, 1, recreateStrategy, stubborn)} {
		before := set.Ready()
		for _, p := range before {
			t.Step("%s: the container cannot be stopped; the pod is force-deleted", set.Name)
			resume := t.fails(n, n.OCIRuntime())
			t.forceDelete(before)
			t.Eventually("the new pod is refused", func() error {
				for _, next := range set.Pods() {
					if next.UID == p.UID {
						continue
					}
					refused := strings.Join(t.Events(string(next.UID), "FailedCreatePodSandBox"), "\n")
					if strings.Contains(refused, "in use by its former sandbox") {
						return nil
					}
					if ready(next) {
						t.Fatalf("it got %s while the old one has %s", addresses(next), addresses(p))
					}
				}
				return errors.New("it is not")
			})
			resume()
		}
		t.sameSet("force-deleted", before, set.ReadyBut(before))
	}
}

// fails has a program of a node fail until repair is called, or the scenario ends.
func (t *Test) fails(n *cluster.Node, program string) (repair func()) {
	t.exec(n, "mount", "--bind", "/bin/false", program)
	return t.undo(func() { t.exec(n, "umount", program) })
}

// otherPods starts pods without a window and ends the scenario if one gets an address of kept.
func (t *Test) otherPods(name string, n *cluster.Node, count int, kept Pods) {
	owner := map[string]string{}
	for name, p := range kept {
		owner[addresses(p)] = name
	}
	for name, p := range t.Deployment(name, n, count).Ready() {
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

// get sends one request from a network namespace.
func get(ns, addr string, limit time.Duration) error {
	client := &http.Client{Timeout: limit,
		Transport: &http.Transport{DialContext: inspect.DialIn(ns), DisableKeepAlives: true}}
	response, err := client.Get("http://" + addr)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
