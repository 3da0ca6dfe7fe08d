package netns_test

import (
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestGCThroughLibcni verifies GC with libcni, which calls DEL for attachments that are in its
// cache and not in the list (docs/facts.md, "libcni turns GC into DELs").
func TestGCThroughLibcni(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.1.0", node.Bridge(node.IPAM("10.1.0.0/24")))
	keep, _ := start(t, node, net, lab.NewPod("default", "keep", ""))
	lost, original := start(t, node, net, lab.NewPod("default", "lost", "10"))
	lost.Remove()
	must.Succeed(t, net.GC(types.GCAttachment{ContainerID: keep.ID, IfName: "eth0"}), "GC")
	if ls := of(node.Leases(), lost.Pod); len(ls) != 1 || ls[0].State != "Held" || ls[0].Address != original {
		t.Errorf("leases of the lost pod: %+v, want %s held", ls, original)
	}
	must.Succeed(t, keep.Check(net), "CHECK of the remaining pod")
}
