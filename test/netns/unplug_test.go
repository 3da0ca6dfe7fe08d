package netns_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestUnpluggedInterface verifies that the address of an interface that was removed from a running
// pod is assigned to other pods after the soft hold, or before if no other is free, but not while
// an interface still has it.
func TestUnpluggedInterface(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", fourAddresses(nil))
	vm, _ := start(t, node, net, lab.NewPod("default", "vm", ""))
	vm.IfName = "net1"
	unplugged := add(t, vm, net)
	vm.IfName = "net2"
	plugged := add(t, vm, net)
	vm.IfName = "net1"
	if err := vm.Del(net); err != nil {
		t.Fatal(err)
	}
	vm.IfName = "net2"
	if err := cniError(t, vm.Call(net, "DEL")); err != nil { // of the IPAM plugin only: the interface stays
		t.Fatal(err)
	}
	_, fourth := start(t, node, net, lab.NewPod("default", "web-0", ""))
	if fourth == unplugged || fourth == plugged {
		t.Errorf("got %s, which is in a soft hold, want the last free address", fourth)
	}
	second, address := start(t, node, net, lab.NewPod("default", "web-1", ""))
	if address != unplugged {
		t.Errorf("got %s, want %s, which was unplugged", address, unplugged)
	}
	_, err := node.Sandbox(lab.NewPod("default", "web-2", "")).Add(net)
	wantCode(t, err, 11, "1 in cool-down")
	stop(t, second, net)
	node.Clock += 3 * time.Minute
	if _, address := start(t, node, net, lab.NewPod("default", "web-3", "")); address != unplugged {
		t.Errorf("got %s, want %s", address, unplugged)
	}
	_, err = node.Sandbox(lab.NewPod("default", "web-4", "")).Add(net)
	wantCode(t, err, 11, "the next hold is over, but container "+vm.ID+" still has "+plugged)
	vm.Remove()
	if _, address := start(t, node, net, lab.NewPod("default", "web-4", "")); address != plugged {
		t.Errorf("got %s, want %s", address, plugged)
	}
}

// TestAThousandUnpluggedInterfaces adds and removes a thousand interfaces of a running pod, in a
// pool of four addresses.
func TestAThousandUnpluggedInterfaces(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	node.Env = []string{"LEASEHOLD_STATE_DIR=" + node.RunDir() + "-state"} // in memory: two thousand commits
	net := bridge(node, "10.1.0.0/24", fourAddresses(nil))
	vm, first := start(t, node, net, lab.NewPod("default", "vm", ""))
	for i := range 1000 {
		vm.IfName = fmt.Sprint("net", i)
		reply := vm.Call(net, "ADD")
		if err := cniError(t, reply); err != nil {
			t.Fatalf("interface %d: %v", i, err)
		}
		var result struct{ IPs []struct{ Address string } }
		if err := json.Unmarshal([]byte(reply.Stdout), &result); err != nil || len(result.IPs) != 1 {
			t.Fatalf("%s: %v", reply.Stdout, err)
		}
		address, err := netlink.ParseAddr(result.IPs[0].Address)
		if err != nil {
			t.Fatal(err)
		}
		inNetNS(t, vm.NetNS, func(lo netlink.Link) error { return netlink.AddrAdd(lo, address) })
		if err := cniError(t, vm.Call(net, "DEL")); err != nil {
			t.Fatalf("interface %d: %v", i, err)
		}
		inNetNS(t, vm.NetNS, func(lo netlink.Link) error { return netlink.AddrDel(lo, address) })
	}
	for i := range 3 {
		start(t, node, net, lab.NewPod("default", fmt.Sprint("web-", i), ""))
	}
	if leases := node.Leases("--all"); len(leases) != 4 || leases[0].Address != first {
		t.Errorf("leases: %+v", leases)
	}
}

func inNetNS(t *testing.T, path string, fn func(lo netlink.Link) error) {
	t.Helper()
	if err := ns.WithNetNSPath(path, func(ns.NetNS) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return fn(lo)
	}); err != nil {
		t.Fatal(err)
	}
}
