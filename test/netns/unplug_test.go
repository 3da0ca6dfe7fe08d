package netns_test

import (
	"testing"
	"time"

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
