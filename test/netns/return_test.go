package netns_test

import (
	"fmt"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// What every delegating plugin must show: a pod with a window comes back to its addresses and answers there, its siblings
// never get them, and a pod without a window gets what host-local would give it.
func TestReturn(t *testing.T) {
	const subnet, subnet6 = "10.1.0.0/24", "fd01::/64"
	for _, tc := range []struct {
		plugin  string
		version string
		conf    func(*lab.Node) lab.Conf
	}{
		{"bridge", "1.1.0", func(n *lab.Node) lab.Conf { return n.Bridge(n.IPAM(subnet, subnet6)) }},
		{"ptp", "1.0.0", func(n *lab.Node) lab.Conf { return n.PTP(n.IPAM(subnet, subnet6)) }},
		{"macvlan", "1.0.0", func(n *lab.Node) lab.Conf { return n.Macvlan(n.IPAM(subnet, subnet6)) }},
		{"flannel", "0.3.1", func(n *lab.Node) lab.Conf {
			ipam := n.IPAM()
			delete(ipam, "ranges") // from subnet.env
			return n.Flannel(ipam, subnet, subnet6)
		}},
	} {
		t.Run(tc.plugin, func(t *testing.T) {
			t.Parallel()
			node := newNode(t)
			net := node.Network("net", tc.version, tc.conf(node))
			db, web := lab.NewPod("default", "db-0", "10"), lab.NewPod("default", "web-0", "")

			first, home := start(t, node, net, db)
			client, clientAddress := start(t, node, net, lab.NewPod("default", "client", ""))
			plain, plainAddress := start(t, node, net, web)
			stop(t, first, net)
			stop(t, plain, net)
			seen := map[string]bool{clientAddress: true}
			for i := range 5 {
				_, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("sibling-", i), ""))
				if address == home || seen[address] {
					t.Errorf("sibling %d got %s: %s is held, and %v are in use", i, address, home, seen)
				}
				seen[address] = true
			}

			second, address := start(t, node, net, again(db))
			if address != home {
				t.Errorf("db-0 came back with %s, want %s", address, home)
			}
			if _, address := start(t, node, net, again(web)); address == plainAddress {
				t.Errorf("web-0 asks for nothing and came back to %s, want the next address", address)
			}
			second.Echo()
			held := of(node.Leases(), db)
			if len(held) != 2 {
				t.Fatalf("db-0 has %d leases, want one for each family: %+v", len(held), held)
			}
			for _, l := range held {
				if l.Container != second.ID || l.State != "Bound" {
					t.Errorf("the lease of %s is %s by %s, want Bound by %s", l.Address, l.State, l.Container, second.ID)
				}
				if err := client.Ask(l.Address); err != nil {
					t.Errorf("a sibling asks db-0: %v", err)
				}
			}
		})
	}
}

// A pod with several interfaces in several networks and families gets each of them back exactly.
func TestReturnOfEveryInterface(t *testing.T) {
	node := newNode(t)
	front := node.Network("front", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24", "fd01::/64")))
	back := node.Network("back", "1.0.0", node.Bridge(node.IPAM("10.2.0.0/24")))
	pod := lab.NewPod("default", "db-0", "10")
	attach := func() (*lab.Sandbox, map[string]string) {
		sandbox := node.Sandbox(again(pod))
		addresses := map[string]string{}
		for _, a := range []struct {
			ifname string
			net    *lab.Network
		}{{"eth0", front}, {"eth1", front}, {"net1", back}} {
			sandbox.IfName = a.ifname
			addresses[a.ifname] = add(t, sandbox, a.net)
		}
		return sandbox, addresses
	}

	first, before := attach()
	for ifname, net := range map[string]*lab.Network{"eth0": front, "eth1": front, "net1": back} {
		first.IfName = ifname
		if err := first.Del(net); err != nil {
			t.Fatalf("DEL %s: %v", ifname, err)
		}
	}
	first.Remove()
	for i := range 3 {
		other := lab.NewPod("default", fmt.Sprint("other-", i), "")
		start(t, node, front, other)
		start(t, node, back, other)
	}
	_, after := attach()
	for ifname := range before {
		if before[ifname] != after[ifname] {
			t.Errorf("%s came back with %s, want %s", ifname, after[ifname], before[ifname])
		}
	}
	if got := len(of(node.Leases(), pod)); got != 5 {
		t.Errorf("the pod has %d leases, want 5: two families on two interfaces, and one more", got)
	}
}

// After a reboot no DEL may ever come (FACTS 1.20): what was bound is held from then on, or free.
func TestReturnAfterReboot(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", few(nil))
	pods := []lab.Pod{lab.NewPod("default", "db-0", "10"), lab.NewPod("default", "db-1", "10"), lab.NewPod("default", "web-0", ""), lab.NewPod("default", "web-1", "")}
	homes := map[string]string{}
	for _, pod := range pods {
		sandbox, address := start(t, node, net, pod)
		homes[pod.Name] = address
		sandbox.Remove()
	}
	node.Reboot()
	for range 2 {
		if _, address := start(t, node, net, lab.NewPod("default", "new-"+newName(), "")); address == homes["db-0"] || address == homes["db-1"] {
			t.Errorf("%s is held, and was given away after the reboot", address)
		}
	}
	for _, pod := range pods[:2] {
		if _, address := start(t, node, net, again(pod)); address != homes[pod.Name] {
			t.Errorf("%s came back with %s, want %s", pod.Name, address, homes[pod.Name])
		}
	}
}

func newName() string { return lab.NewPod("", "", "").UID[:8] }

// A pod that comes back again and again wears nothing out: in the end every address is free again (Kruise's fork leaked
// one for each return).
func TestReturnTwoHundredTimes(t *testing.T) {
	node := newNode(t)
	ipam := lab.Conf{"softHold": "1s", "ranges": [][]lab.Conf{{{"subnet": "10.1.0.0/28"}}}}
	net := bridge(node, "10.1.0.0/28", ipam)
	pod := lab.NewPod("default", "db-0", "3s")
	var home string
	for i := range 200 {
		sandbox, address := start(t, node, net, again(pod))
		if home == "" {
			home = address
		}
		if address != home {
			t.Fatalf("return %d: got %s, want %s", i, address, home)
		}
		stop(t, sandbox, net)
	}
	if leases := node.Leases(); len(leases) != 1 || leases[0].State != "Held" || !leases[0].Firm {
		t.Errorf("before the window ends: %+v, want the one hold", leases)
	}

	node.Clock += 4e9
	if leases := node.Leases(); len(leases) != 0 {
		t.Errorf("after the window has ended: %+v, want nothing", leases)
	}
	checkStore(t, node)
	// 16 less network, broadcast and gateway.
	seen := map[string]bool{}
	for i := range 13 {
		_, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("pod-", i), ""))
		if seen[address] {
			t.Errorf("%s was handed out twice", address)
		}
		seen[address] = true
	}
	_, err := node.Sandbox(lab.NewPod("default", "pod-13", "")).Add(net)
	wantCode(t, err, 11, "no IP addresses available")
}
