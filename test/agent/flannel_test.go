package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestFlannelLosesADel verifies that the agent releases the address if flannel's IPAM plugin fails:
// flannel's DEL removes its scratch file nevertheless, and a repeated DEL without that file does
// not call the IPAM plugin.
func TestFlannelLosesADel(t *testing.T) {
	node := lab.NewNode(t)
	net := node.Network("cbr0", "0.3.1", node.Flannel(node.IPAM(), "10.9.0.0/24", ""))
	living := node.Sandbox(lab.NewPod("ns", "living", "10"))
	leaked := node.Sandbox(lab.NewPod("ns", "leaked", "10"))
	for _, sandbox := range []*lab.Sandbox{living, leaked} {
		if _, err := sandbox.Add(net); err != nil {
			t.Fatalf("ADD: %v", err)
		}
	}
	scratch := filepath.Join(node.Dir, "flannel", leaked.ID)
	if !exists(scratch) {
		t.Fatalf("flannel has no %s", scratch)
	}
	node.Install("leasehold", "/bin/false")
	if err := leaked.Del(net); err == nil {
		t.Fatal("DEL succeeded although the IPAM plugin failed")
	}
	node.Install("leasehold", lab.Bin("leasehold"))
	// The flannel plugin of containernetworking/plugins keeps its file if the IPAM plugin fails,
	// the one of flannel-io does not since 1.2.0.
	if err := os.Remove(scratch); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := leaked.Del(net); err != nil {
		t.Fatalf("the second DEL: %v", err)
	}
	state := func() string {
		for _, l := range node.Leases() {
			if l.Pod == "leaked" {
				return l.State
			}
		}
		return "none"
	}
	if state() != "Bound" {
		t.Fatalf("the second DEL called the IPAM plugin: the lease is %s", state())
	}
	agent := begin(t, node, views[0])
	agent.says(`msg="node surveyed"`)
	if state() != "Bound" {
		t.Errorf("its sandbox exists, but the lease is %s", state())
	}
	agent.end()

	leaked.Remove()
	agent = begin(t, node, views[0])
	background.Eventually(t, func() string {
		if s := state(); s != "Held" {
			return "its sandbox is gone, but the lease is " + s
		}
		return ""
	})
	agent.end()
	history, err := node.Leasectl("history", "ns/leaked")
	if err != nil || !strings.Contains(history, "Orphaned") || !strings.Contains(history, "its sandbox is gone") {
		t.Errorf("%v\n%s", err, history)
	}
}

func exists(path string) bool {
	found, err := filepath.Glob(path)
	return err == nil && len(found) == 1
}
