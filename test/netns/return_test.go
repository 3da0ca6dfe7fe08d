package netns_test

import (
	"fmt"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestReturn verifies with every main plugin that a returned pod with a window has its addresses
// and can be reached at them, that other pods do not get them, and that a pod without a window gets
// the address that host-local would assign.
func TestReturn(t *testing.T) {
	for _, tc := range mainPlugins {
		t.Run(tc.plugin, func(t *testing.T) {
			t.Parallel()
			node := newNode(t)
			net := node.Network("net", tc.version, tc.conf(node))
			db, web := lab.NewPod("default", "db-0", "10"), lab.NewPod("default", "web-0", "")

			first, original := start(t, node, net, db)
			client, clientAddress := start(t, node, net, lab.NewPod("default", "client", ""))
			plain, plainAddress := start(t, node, net, web)
			stop(t, first, net)
			stop(t, plain, net)
			seen := map[string]bool{clientAddress: true}
			for i := range 5 {
				_, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("sibling-", i), ""))
				if address == original || seen[address] {
					t.Errorf("pod %d got %s, but %s is held and %v are in use", i, address, original, seen)
				}
				seen[address] = true
			}

			second, address := start(t, node, net, recreated(db))
			if address != original {
				t.Errorf("db-0 came back with %s, want %s", address, original)
			}
			if _, address := start(t, node, net, recreated(web)); address == plainAddress {
				t.Errorf("web-0 has no window and got %s again, want the next address", address)
			}
			second.Echo()
			held := of(node.Leases(), db)
			if len(held) != 2 {
				t.Fatalf("db-0 has %d leases, want one for each family: %+v", len(held), held)
			}
			for _, l := range held {
				if l.Container != second.ID || l.State != "Bound" {
					t.Errorf("the lease of %s is %s by %s, want Bound by %s",
						l.Address, l.State, l.Container, second.ID)
				}
				if err := client.Ask(l.Address); err != nil {
					t.Errorf("connect from another pod to db-0: %v", err)
				}
			}
		})
	}
}

// TestReturnOfEveryInterface verifies that every interface of a pod gets its own addresses back,
// with several networks, address families, and interfaces in the same network.
func TestReturnOfEveryInterface(t *testing.T) {
	node := newNode(t)
	front := node.Network("front", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24", "fd01::/64")))
	back := node.Network("back", "1.0.0", node.Bridge(node.IPAM("10.2.0.0/24")))
	pod := lab.NewPod("default", "db-0", "10")
	attach := func() (*lab.Sandbox, map[string]string) {
		sandbox := node.Sandbox(recreated(pod))
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

// TestReturnAfterReboot verifies that the addresses of the previous boot are held or free without a
// DEL (docs/facts.md, "Some leases never get a DEL").
func TestReturnAfterReboot(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", fourAddresses(nil))
	pods := []lab.Pod{
		lab.NewPod("default", "db-0", "10"), lab.NewPod("default", "db-1", "10"),
		lab.NewPod("default", "web-0", ""), lab.NewPod("default", "web-1", ""),
	}
	originals := map[string]string{}
	for _, pod := range pods {
		sandbox, address := start(t, node, net, pod)
		originals[pod.Name] = address
		sandbox.Remove()
	}
	node.Reboot()
	for range 2 {
		_, address := start(t, node, net, lab.NewPod("default", "new-"+newName(), ""))
		if address == originals["db-0"] || address == originals["db-1"] {
			t.Errorf("%s is held, but was assigned to another pod after the reboot", address)
		}
	}
	for _, pod := range pods[:2] {
		if _, address := start(t, node, net, recreated(pod)); address != originals[pod.Name] {
			t.Errorf("%s came back with %s, want %s", pod.Name, address, originals[pod.Name])
		}
	}
}

func newName() string { return lab.NewPod("", "", "").UID[:8] }
